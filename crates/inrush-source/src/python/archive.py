

def stored_weights():
    """Returns the tensors of the archive by name."""
    program = torch.export.load(ARCHIVE)
    return {**program.state_dict, **program.constants}
