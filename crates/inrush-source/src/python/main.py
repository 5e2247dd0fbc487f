def median_time(run):
    """Returns the median of the seconds that ``run`` takes."""
    times, total = [], 0.0
    run()
    while len(times) < 10 or total < 0.5:
        synchronize()
        start = time.perf_counter()
        run()
        synchronize()
        times.append(time.perf_counter() - start)
        total += times[-1]
    return statistics.median(times)


def main():
    """Calls the graph on drawn inputs and prints its outputs and the time of a call."""
    global CHECK
    parser = argparse.ArgumentParser(description="Calls a compiled graph on drawn inputs.")
    parser.add_argument("--kernels", action="store_true", help="time each kernel by itself, with the bytes of its tensors a second")
    parser.add_argument("--check", action="append", choices=["nan", "inf"], default=[], help="stop at the kernel that gives the first such value")
    options = parser.parse_args()
    if options.kernels:
        time_kernels()
        return
    CHECK = tuple(options.check)
    values = inputs()
    for k, value in enumerate(call(*values)):
        text = f"{value.dtype} {list(value.shape)} strides {list(value.stride())}" if isinstance(value, torch.Tensor) else repr(value)
        print(f"output {k}: {text}")
    print(f"{median_time(lambda: call(*values)) * 1e6:.1f} us a call")


if __name__ == "__main__":
    main()
