//! Reads archives and prints what is in them, with the time that reading took.

fn main() {
    for path in std::env::args().skip(1) {
        let start = std::time::Instant::now();
        match inrush_torch::open(path.as_ref()) {
            Ok(m) => println!(
                "{path}: {:.1} ms\n{}",
                start.elapsed().as_secs_f64() * 1e3,
                m.summary()
            ),
            Err(e) => println!("{e}"),
        }
    }
}
