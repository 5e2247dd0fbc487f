

WEIGHTS = {}


def load_weights(tensors=None):
    """Takes the tensors of the model by name, by default from the file, and lays them out as kernels read them."""
    if tensors is None:
        tensors = stored_weights()
    for name, (dtype, sizes, strides) in WEIGHT_LAYOUTS.items():
        if name == SEED:
            WEIGHTS[name] = torch.zeros(sizes, dtype=dtype, device=DEVICE)
            continue
        tensor = tensors[name].detach()
        expect(name, tensor, dtype, len(sizes))
        WEIGHTS[name] = laid_out(name, tensor.to(DEVICE), dtype, sizes, strides)
