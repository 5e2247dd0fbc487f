def main():
    """Calls the graph on drawn inputs and prints its outputs and the time of a call."""
    values = inputs()
    outputs = call(*values)
    for k, value in enumerate(outputs):
        text = f"{value.dtype} {list(value.shape)} strides {list(value.stride())}" if isinstance(value, torch.Tensor) else repr(value)
        print(f"output {k}: {text}")
    times = []
    while len(times) < 10 or sum(times) < 0.5:
        start = time.perf_counter()
        call(*values)
        synchronize()
        times.append(time.perf_counter() - start)
    print(f"{statistics.median(times) * 1e6:.1f} us a call, median of {len(times)}")


if __name__ == "__main__":
    main()
