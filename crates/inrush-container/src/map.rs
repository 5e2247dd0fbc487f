//! Reads the `std::unordered_map<std::string, at::Tensor*>` in which PyTorch passes new constants.
//!
//! PyTorch passes a pointer to the C++ object. Its layout is part of libstdc++'s binary interface, so that no C++ is needed:
//!
//! ```text
//! map   buckets, bucket count, first node, element count, load factor (float), ..
//! node  next node, string (address, length, 16 bytes of room), value, hash
//! ```
//!
//! Every field is compared with what it must be before the next one is read. Other standard libraries are refused.

use inrush_base::{Error, Result};
use std::ffi::c_void;

/// The most constants that a map may hold.
const MAX_CONSTANTS: usize = 1 << 20;
/// The longest name of a constant, in bytes.
const MAX_NAME: usize = 1 << 16;

/// The fields of libstdc++'s `std::unordered_map`, up to the last one that is read.
#[repr(C)]
struct Map {
    buckets: *const *const Node,
    bucket_count: usize,
    first: *const Node,
    element_count: usize,
    max_load_factor: f32,
}

/// A node of the map's list, whose value is a pair of `std::string` and a pointer.
#[repr(C)]
struct Node {
    next: *const Node,
    name: *const u8,
    length: usize,
    /// The characters of a short name, or the room of a long one.
    _room: [u8; 16],
    value: *mut c_void,
}

/// Returns the names and values of a map, sorted by name.
///
/// # Errors
/// An input error for what cannot be a map of libstdc++, an unsupported error on other platforms.
///
/// # Safety
/// `map` is null or the address of a live `std::unordered_map<std::string, T*>`.
pub(crate) unsafe fn read(map: *const c_void) -> Result<Vec<(String, *mut c_void)>> {
    if !cfg!(all(
        target_os = "linux",
        target_env = "gnu",
        target_pointer_width = "64"
    )) {
        return Err(Error::unsupported(
            "new constants on a platform whose C++ library is not libstdc++",
        ));
    }
    if !is_aligned(map.cast::<Map>()) {
        return Err(odd("its address"));
    }
    // SAFETY: live by the caller's promise, aligned as it must be.
    let head = unsafe { &*map.cast::<Map>() };
    let count = head.element_count;
    if count > MAX_CONSTANTS || head.bucket_count == 0 || head.bucket_count > 64 * MAX_CONSTANTS {
        return Err(odd("its number of elements"));
    }
    let load = count as f64 / head.bucket_count as f64;
    if !(0.1..=1e3).contains(&head.max_load_factor) || load > f64::from(head.max_load_factor) + 1.0
    {
        return Err(odd("its load factor"));
    }
    if !is_aligned(head.buckets) {
        return Err(odd("its buckets"));
    }
    let mut found = Vec::with_capacity(count);
    let mut at = head.first;
    while !at.is_null() {
        if found.len() == count || !is_aligned(at) {
            return Err(odd("its list"));
        }
        // SAFETY: a node of the list, of which there are as many as the map says.
        let node = unsafe { &*at };
        // SAFETY: as above.
        found.push((unsafe { name(node) }?, node.value));
        at = node.next;
    }
    if found.len() != count {
        return Err(odd("its list"));
    }
    found.sort();
    Ok(found)
}

/// Returns the name of a node.
///
/// # Safety
/// `node` belongs to a live map.
unsafe fn name(node: &Node) -> Result<String> {
    if node.name.is_null() || node.length > MAX_NAME {
        return Err(odd("a name"));
    }
    // SAFETY: a string of C++ has its length, and a zero byte after it.
    let bytes = unsafe { std::slice::from_raw_parts(node.name, node.length + 1) };
    match bytes.split_last() {
        Some((0, text)) => String::from_utf8(text.to_vec())
            .map_err(|_| Error::input("the name of a constant is not UTF-8")),
        _ => Err(odd("a name")),
    }
}

fn is_aligned<T>(p: *const T) -> bool {
    !p.is_null() && (p as usize).is_multiple_of(align_of::<T>())
}

/// The error of memory that is not laid out as a map.
fn odd(what: &str) -> Error {
    Error::input(format!(
        "new constants come in a map that is not libstdc++'s: {what} is not what it must be"
    ))
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// A map of the names, with values 0x1000, 0x2000, ..
    struct Made {
        #[expect(clippy::vec_box)] // Nodes point to each other.
        nodes: Vec<Box<Node>>,
        buckets: Vec<*const Node>,
        _names: Vec<Vec<u8>>,
    }

    impl Made {
        fn of(names: &[&str]) -> Made {
            let held: Vec<Vec<u8>> = names
                .iter()
                .map(|n| [n.as_bytes(), b"\0"].concat())
                .collect();
            let mut nodes: Vec<Box<Node>> = Vec::new();
            for (k, name) in held.iter().enumerate() {
                nodes.push(Box::new(Node {
                    next: nodes.last().map_or(std::ptr::null(), |n| &raw const **n),
                    name: name.as_ptr(),
                    length: name.len() - 1,
                    _room: [0; 16],
                    value: ((k + 1) * 0x1000) as *mut c_void,
                }));
            }
            Made {
                buckets: vec![std::ptr::null(); names.len().max(1)],
                nodes,
                _names: held,
            }
        }

        fn head(&self) -> Map {
            Map {
                buckets: self.buckets.as_ptr(),
                bucket_count: self.buckets.len(),
                first: self
                    .nodes
                    .last()
                    .map_or(std::ptr::null(), |n| &raw const **n),
                element_count: self.nodes.len(),
                max_load_factor: 1.0,
            }
        }
    }

    fn read_head(head: &Map) -> Result<Vec<(String, usize)>> {
        // SAFETY: each test passes what it made; whatever is refused is not read.
        let found = unsafe { read((&raw const *head).cast()) }?;
        Ok(found.into_iter().map(|(n, v)| (n, v as usize)).collect())
    }

    #[test]
    fn names_and_values_are_read_in_order_of_names() {
        let long = "a name that is longer than what a string keeps inside of itself";
        let made = Made::of(&["b", long, ""]);
        let expected = [
            (String::new(), 0x3000),
            (long.into(), 0x2000),
            ("b".into(), 0x1000),
        ];
        assert_eq!(read_head(&made.head()).unwrap(), expected);
        assert_eq!(read_head(&Made::of(&[]).head()).unwrap(), []);
    }

    #[test]
    fn what_is_no_map_is_refused() {
        let made = Made::of(&["a", "b"]);
        let refused = |change: &dyn Fn(&mut Map), why: &str| {
            let mut head = made.head();
            change(&mut head);
            let error = read_head(&head).unwrap_err().to_string();
            assert!(
                error.contains("not libstdc++'s") && error.contains(why),
                "{error}"
            );
        };
        refused(&|h| h.element_count = 1, "its list");
        refused(&|h| h.element_count = 3, "its list");
        refused(&|h| h.element_count = usize::MAX, "elements");
        refused(&|h| h.bucket_count = 0, "elements");
        refused(&|h| h.bucket_count = usize::MAX / 2, "elements");
        refused(&|h| h.max_load_factor = f32::NAN, "load factor");
        refused(&|h| h.max_load_factor = 0.0, "load factor");
        refused(&|h| h.buckets = std::ptr::null(), "buckets");
        refused(&|h| h.first = h.first.wrapping_byte_add(3), "its list");
        // SAFETY: null is refused before it is read.
        assert!(unsafe { read(std::ptr::null()) }.is_err());
        for change in [
            |n: &mut Node| n.name = std::ptr::null(),
            |n: &mut Node| n.length = usize::MAX,
            |n: &mut Node| n.length -= 1,
        ] {
            let mut made = Made::of(&["weight"]);
            change(&mut made.nodes[0]);
            let error = read_head(&made.head()).unwrap_err().to_string();
            assert!(error.contains("a name"), "{error}");
        }
        let mut cycle = Made::of(&["a"]);
        let own = &raw const *cycle.nodes[0];
        cycle.nodes[0].next = own;
        assert!(
            read_head(&cycle.head())
                .unwrap_err()
                .to_string()
                .contains("its list")
        );
    }
}
