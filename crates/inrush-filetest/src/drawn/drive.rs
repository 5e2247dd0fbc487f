//! Runs drawn graphs for a while, in processes of their own, and sums up.
//!
//! A crash of generated code ends its process, so graphs are checked in workers that the leader
//! starts from this same executable. A worker says on its standard output what it does, a line
//! each:
//!
//! ```text
//! family NAME                   begin SEED LEVEL
//! way LEVEL NAME COUNT          agreed LEVEL
//! failed SEED LEVEL FAMILY: ..  refused SEED LEVEL: ..
//! note ..                       end
//! ```
//!
//! If the output ends without `end`, the process died of the graph that it began last: that is a
//! failure, and a new worker goes on with the seed after it. Worker `w` of `n` checks seeds `w`,
//! `w + n`, `w + 2n`, .. from the first.

use super::{Drawn, Level, draw_with, families, shrink, ways};
use inrush_base::tally::Way;
use inrush_base::{ErrorKind, Isa};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const HELP: &str = "\
Draws graphs and compares compiled code with the interpreter. Needs a C compiler.

  --seconds N   how long (60)
  --count N     how many graphs a level at most
  --seed N      the first seed (from INRUSH_SEED or the clock)
  --level L     scalar, avx2, avx512 or neon; several with commas (all that this processor has); neon runs in an emulator
                where INRUSH_CLANG and INRUSH_UNICORN name its tools; h100 and other GPUs: their block programs are
                interpreted, without a C compiler or Triton
  --threads N   threads of every call (1 to 3 by chance)
  --jobs N      processes (1)
  --family F    only families whose name contains this; an unknown one lists all
  --named yes   sizes are names with hints in all graphs that allow it, no: in none (in a third of them; in none with --write)
  --out DIR     where failures are written (drawn-failures)
  --reach yes   fail where an algorithm or a strategy was never taken on a level; those that few graphs take
                are looked for until found, at most three times as long again
  --file PATH   check a file test, as one that was written to DIR
  --write DIR   write --count graphs as file tests instead of checking them
  --without T   with --write: leave out graphs that have this in their text, such as bf16
  --show SEED   print the graph of this seed, check it, and shrink it where it fails";

/// The arguments of the command.
#[derive(Clone)]
struct Options {
    seconds: u64,
    count: u64,
    seed: u64,
    levels: Vec<Level>,
    threads: Option<usize>,
    jobs: u64,
    family: String,
    reach: bool,
    named: Option<bool>,
    out: PathBuf,
    show: Option<u64>,
    write: Option<PathBuf>,
    without: Option<String>,
    file: Option<PathBuf>,
    /// The number of this process among the jobs.
    worker: Option<u64>,
}

/// Reads the command line; `None` where it asks for help. The error is the text to print.
fn options() -> Result<Option<Options>, String> {
    let given = std::env::var("INRUSH_SEED").ok();
    let given: Option<u64> = given
        .map(|s| s.parse().map_err(|e| format!("INRUSH_SEED={s}: {e}")))
        .transpose()?;
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let mut o = Options {
        seconds: 60,
        count: u64::MAX,
        // Runs that start in different seconds are at least a million seeds apart.
        seed: given.unwrap_or_else(|| clock.map_or(1, |d| d.as_secs())) % 1_000_000 * 1_000_000,
        levels: Level::available(),
        threads: None,
        jobs: 1,
        family: String::new(),
        reach: false,
        named: None,
        out: PathBuf::from("drawn-failures"),
        show: None,
        write: None,
        without: None,
        file: None,
        worker: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        if name == "--help" || name == "-h" {
            return Ok(None);
        }
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || {
            value
                .parse::<u64>()
                .map_err(|_| format!("{name} {value} is no number"))
        };
        match name.as_str() {
            "--seconds" => o.seconds = number()?,
            "--count" => o.count = number()?,
            "--seed" => o.seed = number()?,
            "--threads" => o.threads = Some(number()?.clamp(1, 64) as usize),
            "--jobs" => o.jobs = number()?.max(1),
            "--reach" => o.reach = value == "yes",
            "--family" => o.family = value,
            "--named" => o.named = Some(value == "yes"),
            "--out" => o.out = value.into(),
            "--file" => o.file = Some(value.into()),
            "--write" => o.write = Some(value.into()),
            "--without" => o.without = Some(value),
            "--show" => o.show = Some(number()?),
            "--worker" => o.worker = Some(number()?),
            "--level" => {
                o.levels = (value.split(','))
                    .map(|l| Level::parse(l).ok_or_else(|| format!("no level `{l}`")))
                    .collect::<Result<_, _>>()?;
                let lacks = |l: &&Level| !l.is_available();
                if let Some(l) = o.levels.iter().find(lacks) {
                    return Err(format!(
                        "this processor has no {}{}",
                        l.name(),
                        match l {
                            Level::Cpu(Isa::Neon) =>
                                ", and INRUSH_CLANG and INRUSH_UNICORN name no emulator",
                            _ => "",
                        }
                    ));
                }
            }
            _ => return Err(format!("unknown option {name}\n\n{HELP}")),
        }
    }
    if !super::has_family(&o.family) {
        let all: Vec<&str> = families::names().collect();
        return Err(format!("no family `{}`: {}", o.family, all.join(", ")));
    }
    Ok(Some(o))
}

/// The command.
pub fn main() -> ExitCode {
    let o = match options() {
        Ok(Some(o)) => o,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(e) => {
            println!("{e}");
            return ExitCode::from(2);
        }
    };
    if let Some(path) = &o.file {
        let done = crate::check_file(path, false);
        done.failures.iter().for_each(|f| println!("{f}"));
        println!("{} checked, {} failed", done.checked, done.failures.len());
        return ExitCode::from(u8::from(!done.failures.is_empty()));
    }
    if let Some(folder) = &o.write {
        return match write(&o, folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                println!("{}: {e}", folder.display());
                ExitCode::FAILURE
            }
        };
    }
    match (o.show, o.worker) {
        (Some(seed), _) => show(&o, seed),
        (None, Some(w)) => work(&o, w),
        (None, None) => lead(&o),
    }
}

/// Returns the graph of a seed, with the command's number of threads.
fn drawn(o: &Options, seed: u64) -> Drawn {
    // What takes written graphs gives them inputs by their sizes.
    let numbers = o.write.is_some().then_some(false);
    let mut d = draw_with(seed, &o.family, o.named.or(numbers));
    if let Some(n) = o.threads {
        d.threads = n;
    }
    d
}

/// Writes graphs as file tests, for checks that take such.
fn write(o: &Options, folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    println!("seed {}: again with --seed {}", o.seed, o.seed);
    let count = if o.count == u64::MAX { 100 } else { o.count } as usize;
    let unwanted = |text: &str| {
        o.without
            .as_ref()
            .is_some_and(|w| text.contains(w.as_str()))
    };
    let texts = (o.seed..).map(|seed| (seed, drawn(o, seed).print(o.levels[0])));
    for (seed, text) in texts.filter(|(_, text)| !unwanted(text)).take(count) {
        let head = format!("# A graph that was drawn (seed {seed})\n\n");
        std::fs::write(folder.join(format!("{seed}.md")), head + &text)?;
    }
    Ok(())
}

/// Prints and checks one graph, and shrinks it if it fails, within `--seconds` for each level.
fn show(o: &Options, seed: u64) -> ExitCode {
    let d = drawn(o, seed);
    let mut code = ExitCode::SUCCESS;
    for isa in &o.levels {
        println!("{}", d.print(*isa));
        match d.check(*isa) {
            Ok(()) => println!("{}: agrees", isa.name()),
            Err(e) => {
                code = ExitCode::FAILURE;
                println!("{}: {e}\n", isa.name());
                let small = shrink(&d, *isa, Duration::from_secs(o.seconds));
                println!("{}", small.print(*isa));
                if let Err(e) = small.check(*isa) {
                    println!("{}: {e}", isa.name());
                }
            }
        }
    }
    code
}

/// Seconds that the last graph may take when the time is over.
/// A graph that does not end in this time is named in a note, and the worker ends.
const GRACE: u64 = 30;

/// Seed of the graph that is being checked, and whether it is wrong and made smaller.
static CHECKED: (AtomicU64, AtomicBool) = (AtomicU64::new(0), AtomicBool::new(false));

/// Ends the process some time after `end`, with a note that names the graph that was not finished. Waits for graphs that are made smaller.
fn end_late(end: Instant) {
    std::thread::spawn(move || {
        let late = end + Duration::from_secs(GRACE);
        while Instant::now() < late || CHECKED.1.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
        }
        let seed = CHECKED.0.load(Ordering::Relaxed);
        println!("note {seed}: not finished {GRACE} seconds after the time was over\nend");
        std::process::exit(0);
    });
}

/// One of the processes: says on its output what it begins, what failed, what was reached.
fn work(o: &Options, worker: u64) -> ExitCode {
    let end = Instant::now() + Duration::from_secs(o.seconds);
    end_late(end);
    inrush_base::tally::start();
    // Panics are failures that are told with their graph.
    std::panic::set_hook(Box::new(|_| {}));
    let mut at = 0u64;
    while Instant::now() < end && at * o.jobs < o.count {
        let seed = o.seed + worker + at * o.jobs;
        at += 1;
        let Ok(d) = std::panic::catch_unwind(|| drawn(o, seed)) else {
            println!("failed {seed} none of them: the generator panics");
            continue;
        };
        println!("family {}", d.family);
        for isa in &o.levels {
            println!("begin {seed} {}", isa.name());
            CHECKED.0.store(seed, Ordering::Relaxed);
            // The counters are of the whole process: the difference belongs to this graph.
            let before = inrush_base::tally::counts();
            let checked = d.check(*isa);
            for ((way, n), (_, old)) in inrush_base::tally::counts().into_iter().zip(before) {
                if n > old {
                    println!("way {} {} {}", isa.name(), way.name(), n - old);
                }
            }
            if let Err(e) = &checked
                && e.kind() == ErrorKind::Unsupported
            {
                // No wrong answer: PyTorch calls what is refused.
                println!("refused {seed} {}: {e}", isa.name());
            } else if let Err(e) = checked {
                // The message of the whole graph; the small one may say something else.
                let first = e.to_string();
                CHECKED.1.store(true, Ordering::Relaxed);
                let small = shrink(&d, *isa, Duration::from_secs(20));
                let why = small.check(*isa).err().map(|e| e.to_string());
                let text = format!(
                    "# A graph that was drawn (seed {seed}, {}).\n\n{}\nFirst: {first}\n\nSmall: {}\n",
                    isa.name(),
                    small.print(*isa),
                    why.unwrap_or_default(),
                );
                let path = o.out.join(format!("{seed}-{}.md", isa.name()));
                let kept =
                    std::fs::create_dir_all(&o.out).and_then(|()| std::fs::write(&path, text));
                if let Err(e) = kept {
                    println!("note {}: {e}", path.display());
                }
                let line = first.lines().next().unwrap_or_default();
                println!("failed {seed} {} {}: {line}", isa.name(), d.family);
                CHECKED.1.store(false, Ordering::Relaxed);
            } else {
                println!("agreed {}", isa.name());
            }
        }
        // Each graph leaves an object in the worker's cache.
        if at.is_multiple_of(50) {
            clear();
        }
    }
    clear();
    println!("end");
    ExitCode::SUCCESS
}

/// Objects are not needed again.
fn clear() {
    if let Some(dir) = std::env::var_os("INRUSH_CACHE_DIR") {
        _ = std::fs::remove_dir_all(dir);
    }
}

/// Reports of all workers, added up.
#[derive(Default)]
struct Summary {
    agreed: BTreeMap<String, u64>,
    families: BTreeMap<String, u64>,
    failures: Vec<String>,
    notes: Vec<String>,
    /// By level and name of the way.
    ways: BTreeMap<String, u64>,
}

impl Summary {
    /// Returns how often a way was taken on a level.
    fn taken(&self, level: Level, way: Way) -> u64 {
        let key = format!("{} {}", level.name(), way.name());
        self.ways.get(&key).copied().unwrap_or(0)
    }

    /// Returns the ways that were never taken on a level that has them.
    fn idle(&self, levels: &[Level]) -> Vec<(Level, Way)> {
        let all = levels
            .iter()
            .flat_map(|l| Way::ALL.iter().map(|w| (*l, *w)));
        all.filter(|(l, w)| ways::exists(*l, *w) && self.taken(*l, *w) == 0)
            .collect()
    }
}

/// Starts the processes and sums up what they say. One that dies is a failure of the graph that it was at, and is started again.
fn lead(o: &Options) -> ExitCode {
    println!("seed {}: again with --seed {}", o.seed, o.seed);
    let end = Instant::now() + Duration::from_secs(o.seconds);
    let sum = std::sync::Mutex::new(Summary::default());
    std::thread::scope(|s| {
        for w in 0..o.jobs {
            let sum = &sum;
            s.spawn(move || {
                let mut first = o.seed;
                while let Some(next) = follow(o, w, first, end, sum, &|_| false) {
                    first = next;
                }
            });
        }
    });
    if o.reach {
        seek(o, &sum);
    }
    let s = sum.into_inner().unwrap_or_else(|e| e.into_inner());
    for (family, n) in &s.families {
        println!("{n:>7} {family}");
    }
    for (level, n) in &s.agreed {
        println!("{n:>7} agree on {level}");
    }
    for n in &s.notes {
        println!("{n}");
    }
    let heads = o.levels.iter().map(|l| format!("{:>9}", l.name()));
    println!("{} of the ways:", heads.collect::<String>());
    for way in Way::ALL {
        let counts = o.levels.iter().map(|l| format!("{:>9}", s.taken(*l, *way)));
        println!("{} {}", counts.collect::<String>(), way.name());
    }
    let idle = s.idle(&o.levels);
    if o.reach {
        for (isa, way) in &idle {
            println!("NEVER REACHED on {}: {}", isa.name(), way.name());
        }
        let cpus = o.levels.iter().any(|l| matches!(l, Level::Cpu(_)));
        for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon] {
            if cpus && !o.levels.contains(&Level::Cpu(isa)) || isa == Isa::Neon {
                println!("not checked here: {}", isa.name());
            }
        }
    }
    for f in &s.failures {
        println!("FAILED {f}");
    }
    println!("{} failed", s.failures.len());
    if s.failures.is_empty() && (idle.is_empty() || !o.reach) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// How many times as long as graphs are drawn what was not reached is looked for. Seconds are enough on a quiet machine; a busy
/// one draws few graphs in the time.
const SEEK: u64 = 3;

/// Draws of families that take what was not reached, until they have.
fn seek(o: &Options, sum: &std::sync::Mutex<Summary>) {
    let end = Instant::now() + Duration::from_secs(SEEK * o.seconds);
    for round in 1.. {
        let idle = (sum.lock().unwrap_or_else(|e| e.into_inner())).idle(&o.levels);
        let mut families: BTreeMap<&str, Vec<(Level, Way)>> = BTreeMap::new();
        for (isa, way) in idle {
            if let Some(family) = ways::family(way) {
                families.entry(family).or_default().push((isa, way));
            }
        }
        let time = end.saturating_duration_since(Instant::now());
        if families.is_empty() || time < Duration::from_secs(2) {
            return;
        }
        // As long for each, so that one that is not found leaves the others theirs.
        let count = families.len() as u32;
        for (at, (family, wanted)) in families.into_iter().enumerate() {
            let time = end.saturating_duration_since(Instant::now());
            let share = (time / (count - at as u32)).max(Duration::from_secs(2));
            look(o, sum, family, &wanted, Instant::now() + share, round);
        }
    }
}

/// Draws of a family until it has taken all that is wanted of it.
fn look(
    o: &Options,
    sum: &std::sync::Mutex<Summary>,
    family: &str,
    wanted: &[(Level, Way)],
    end: Instant,
    round: u64,
) {
    let lacks = |l: &Level| wanted.iter().any(|w| w.0 == *l);
    let one = Options {
        family: family.into(),
        // Seeds that no earlier round has drawn from.
        seed: o.seed + 100_000 * round,
        count: u64::MAX,
        levels: o.levels.iter().copied().filter(lacks).collect(),
        ..o.clone()
    };
    for (isa, way) in wanted {
        println!(
            "looking for `{}` on {} in `{family}`",
            way.name(),
            isa.name()
        );
    }
    let found = |s: &Summary| wanted.iter().all(|(l, w)| s.taken(*l, *w) > 0);
    std::thread::scope(|s| {
        for w in 0..o.jobs {
            let (one, found) = (&one, &found);
            s.spawn(move || follow(one, w, one.seed, end, sum, found));
        }
    });
}

/// Runs one process to its end, or until there is `enough`; the seed to go on from where it died.
fn follow(
    o: &Options,
    worker: u64,
    first: u64,
    end: Instant,
    sum: &std::sync::Mutex<Summary>,
    enough: &(dyn Fn(&Summary) -> bool + Sync),
) -> Option<u64> {
    let left = end.saturating_duration_since(Instant::now()).as_secs();
    let counted = o.count.saturating_sub(first - o.seed);
    if left == 0 || counted == 0 {
        return None;
    }
    let names: Vec<&str> = o.levels.iter().map(|l| l.name()).collect();
    // A cache for each worker, which the leader removes when the worker has ended.
    let cache = std::env::temp_dir().join(format!("drawn-{}-{worker}", std::process::id()));
    let mut command = Command::new(std::env::current_exe().ok()?);
    command
        .args([
            "--worker",
            &worker.to_string(),
            "--seed",
            &first.to_string(),
        ])
        .args([
            "--seconds",
            &left.to_string(),
            "--jobs",
            &o.jobs.to_string(),
        ])
        .args(["--level", &names.join(","), "--count", &counted.to_string()])
        .args(["--family", &o.family, "--out"])
        .arg(&o.out)
        .env("INRUSH_CACHE_DIR", &cache)
        .stdout(Stdio::piped());
    if let Some(named) = o.named {
        command.args(["--named", if named { "yes" } else { "no" }]);
    }
    if let Some(t) = o.threads {
        command.args(["--threads", &t.to_string()]);
    }
    let mut child = command.spawn().ok()?;
    let mut at = (first, String::new());
    let mut ended = false;
    for line in BufReader::new(child.stdout.take()?)
        .lines()
        .map_while(Result::ok)
    {
        let mut s = sum.lock().unwrap_or_else(|e| e.into_inner());
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            // Remembered for the case that nothing follows.
            "begin" => {
                let (seed, level) = rest.split_once(' ').unwrap_or((rest, ""));
                at = (seed.parse().unwrap_or(first), level.to_string());
            }
            "agreed" => *s.agreed.entry(rest.to_string()).or_default() += 1,
            "family" => *s.families.entry(rest.to_string()).or_default() += 1,
            "failed" => {
                println!("FAILED {rest}");
                _ = std::io::stdout().flush();
                s.failures.push(rest.to_string());
            }
            "way" => {
                let (name, n) = rest.rsplit_once(' ').unwrap_or((rest, "0"));
                *s.ways.entry(name.into()).or_default() += n.parse::<u64>().unwrap_or(0);
            }
            "end" => ended = true,
            _ => s.notes.push(line.to_string()),
        }
        if enough(&s) {
            // What it was at is neither right nor wrong.
            _ = child.kill();
            ended = true;
            break;
        }
    }
    let status = child.wait().ok()?;
    _ = std::fs::remove_dir_all(Path::new(&cache));
    if ended {
        return None;
    }
    let text = format!("{} {}: the process died ({status})", at.0, at.1);
    println!("FAILED {text}");
    let mut s = sum.lock().unwrap_or_else(|e| e.into_inner());
    s.failures.push(text);
    // The seed after the last one, less the worker's own number, which it adds again.
    Some(at.0 - worker + o.jobs)
}
