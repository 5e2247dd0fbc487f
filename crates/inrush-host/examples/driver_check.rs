//! On a machine with a GPU: loads a kernel that adds one to `n` floats, launches it, checks the result, and times a chain of
//! launches on the host and on the device.
//!
//! `driver_check DEVICE BINARY SYMBOL THREADS SHARED BLOCK`; the kernel's parameters are an address and a 32-bit integer.

use inrush_base::{Error, Result};
use inrush_host::devices;
use inrush_host::gpu::driver::{Arguments, Stream};
use inrush_host::native::device;
use std::time::Instant;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [on, binary, symbol, threads, shared, block] = words.as_slice() else {
        return Err(Error::input(
            "usage: DEVICE BINARY SYMBOL THREADS SHARED BLOCK",
        ));
    };
    let number = |s: &String| {
        s.parse::<u32>()
            .map_err(|_| Error::input(format!("`{s}` is no number")))
    };
    let (threads, shared, block) = (number(threads)?, number(shared)?, number(block)?);
    let code = std::fs::read(binary).map_err(|e| Error::input(format!("{binary}: {e}")))?;
    let on = device::parse(on)?;
    let driver = devices::driver(on)?;
    driver.make_current(on.index)?;
    println!("driver {}", driver.version()?);
    let kernel = driver.load(&code, symbol, threads, shared)?;
    let (registers, spilled) = kernel.resources()?;
    println!("{registers} registers, {spilled} bytes spilled");

    let n = 1_000_003usize;
    let mut memory = driver.allocate(4 * n)?;
    let values: Vec<u8> = (0..n).flat_map(|k| (k as f32).to_le_bytes()).collect();
    memory.write(&values)?;
    let mut arguments = Arguments::default();
    arguments.pointer(memory.address());
    arguments.i32(n as i32);
    arguments.finish(0);
    let programs = n.div_ceil(block as usize) as u32;
    let stream = Stream(0);
    // SAFETY: the parameters are what the usage says; the memory outlives the work.
    unsafe { kernel.launch([programs, 1, 1], &mut arguments.bytes().to_vec(), stream)? };
    driver.synchronize(stream)?;
    let out = memory.read()?;
    for (k, v) in out.chunks_exact(4).enumerate() {
        let v = f32::from_le_bytes([v[0], v[1], v[2], v[3]]);
        if v != k as f32 + 1.0 {
            return Err(Error::internal(format!("element {k} is {v}")));
        }
    }
    println!("{n} elements are right");

    let (start, end) = (driver.event()?, driver.event()?);
    // The legacy default stream, and the calling thread's own.
    for stream in [stream, Stream(2), stream, Stream(2)] {
        start.record(stream)?;
        let began = Instant::now();
        for _ in 0..200 {
            // SAFETY: as above.
            unsafe { kernel.launch([1, 1, 1], &mut arguments.bytes().to_vec(), stream)? };
        }
        let host = began.elapsed();
        end.record(stream)?;
        let device = end.since(&start)?;
        println!(
            "stream {}: {:.2} us a launch on the host, {:.2} us in all",
            stream.0,
            host.as_secs_f64() * 1e6 / 200.0,
            device as f64 * 1e3 / 200.0
        );
    }
    Ok(())
}
