//! The kinds of GPUs: the one list outside of their crates.
//!
//! Everything that wants a GPU by name, or goes through all of them, asks this list. To add a kind is to add a row.
//!
//! Does not know: functions of drivers, any compiler crate.

#![forbid(unsafe_code)]

use inrush_base::{Caps, Device, Error, Result, Runs};
use inrush_driver::Driver;

macro_rules! kinds {
    ($($name:ident),*) => {
        /// All kinds.
        pub static ALL: [&Device; [$(stringify!($name)),*].len()] = [$(&$name::DEVICE),*];

        /// The functions that find their drivers, in the same order.
        static DRIVERS: [fn() -> Result<Driver>; ALL.len()] = [$($name::driver),*];
    };
}

kinds![inrush_cuda, inrush_rocm, inrush_xpu];

/// Returns a kind of device by name.
pub fn by_name(name: &str) -> Option<&'static Device> {
    ALL.into_iter().find(|d| d.name == name)
}

/// Returns the driver of a kind in this process, which is found and started once.
///
/// # Errors
/// A machine error that says what is missing; an unsupported one for kinds without an executor.
pub fn driver(kind: &Device) -> Result<Driver> {
    let at = ALL.into_iter().position(|d| std::ptr::eq(d, kind));
    at.map_or_else(
        || Err(Error::internal("a kind of device that is not in the list")),
        |at| DRIVERS[at](),
    )
}

/// Returns the capabilities of a preset by its name alone, such as `h100`.
pub fn model(name: &str) -> Option<Caps> {
    ALL.iter().find_map(|d| d.caps(Some(name)))
}

/// Returns the names of all presets, in order.
pub fn models() -> impl Iterator<Item = &'static str> {
    ALL.iter().flat_map(|d| d.presets).map(|p| p.name)
}

/// Returns a kind and the capabilities of a preset, named by the kind and, after a colon, the preset.
///
/// # Errors
/// An input error for names that no device has.
pub fn target(name: &str) -> Result<(&'static Device, Caps)> {
    let (kind, preset) = match name.split_once(':') {
        Some((kind, preset)) => (kind, Some(preset)),
        None => (name, None),
    };
    let found = by_name(kind).and_then(|d| Some((d, d.caps(preset)?)));
    found.ok_or_else(|| Error::input(format!("there is no GPU target `{name}`")))
}

/// Returns the kinds that programs run on, with what that takes, in the order of the list.
pub fn that_run() -> impl Iterator<Item = (&'static Device, &'static Runs)> {
    (ALL.into_iter()).filter_map(|d| d.runs.as_ref().map(|r| (d, r)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_models_are_named_once_and_found_by_their_names() {
        let names: Vec<&str> = models().collect();
        for (k, name) in names.iter().enumerate() {
            assert!(!names[..k].contains(name), "{name} is two models");
        }
        for d in ALL {
            assert!(by_name(d.name).is_some_and(|found| std::ptr::eq(found, d)));
            let (kind, caps) = target(d.name).unwrap();
            assert_eq!((kind.name, caps.kind), (d.name, d.name));
            for p in d.presets {
                let full = target(&format!("{}:{}", d.name, p.name)).unwrap().1;
                assert_eq!(Some(full), model(p.name));
            }
        }
        for wrong in ["", "cpu", "h100", "cuda:h1", "cuda:"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_of_devices_that_run_differ() {
        let mut numbers: Vec<i32> = that_run().map(|(_, r)| r.torch_number).collect();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert!(count > 0 && numbers.len() == count && !numbers.contains(&0));
    }
}
