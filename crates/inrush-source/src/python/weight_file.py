

# Element types by their names in files of tensors.
STORED_TYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


def stored_weights():
    """Returns the tensors of a safetensors file by name: the bytes of an index, the index, elements."""
    with open(ARCHIVE, "rb") as file:
        count = int.from_bytes(file.read(8), "little")
        index = json.loads(file.read(count))
        elements = bytearray(file.read())
    tensors = {}
    for name, entry in index.items():
        if name == "__metadata__":
            continue
        dtype, sizes = STORED_TYPES[entry["dtype"]], entry["shape"]
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(elements[begin:end], dtype=dtype) if end > begin else torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(sizes)
    return tensors
