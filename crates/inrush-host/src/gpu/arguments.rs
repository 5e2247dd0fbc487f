//! Arguments of launches, packed as kernels read them.

use super::driver::{Arguments, Tensor, TensorMap};
use crate::devices;
use crate::program::Device;
use inrush_base::{Error, Result};
use inrush_program::{BinaryInfo, MapLayout};
use smallvec::SmallVec;
use std::sync::{Arc, Mutex, PoisonError};

/// Arguments without addresses.
pub struct Packed {
    pub arguments: Arguments,
    /// Where the addresses of the buffers go, and how many bytes after the buffer's beginning each points.
    pub places: SmallVec<[(u32, u64); 16]>,
    /// Where the address of the scratch space goes.
    pub scratch: u32,
    pub maps: Vec<Map>,
}

/// A tensor map among packed arguments. The address of its buffer goes to its place, until the map is written over it.
pub struct Map {
    place: u32,
    /// Bytes from the buffer's beginning to the tensor's.
    begin: u64,
    made: Arc<Made>,
}

/// A tensor with its map. Equal descriptors of a call share it, so that the driver is asked once.
pub struct Made {
    tensor: Tensor,
    /// The map of the address that came last.
    last: Mutex<Option<(u64, TensorMap)>>,
}

impl Made {
    /// Returns a tensor whose map is not made yet.
    pub fn new(tensor: Tensor) -> Made {
        Made {
            tensor,
            last: Mutex::default(),
        }
    }

    /// Returns the tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

impl Map {
    /// Returns the map of the tensor whose address stands at a place.
    pub fn new(place: u32, made: Arc<Made>) -> Map {
        Map {
            place,
            begin: 0,
            made,
        }
    }

    /// Writes the map for the address that stands in its place, for the current device.
    pub fn write(&self, bytes: &mut [u8], device: Device) -> Result<()> {
        let at = self.place as usize;
        let missing = || Error::internal("a tensor map beyond the arguments");
        let place = bytes
            .get_mut(at..at + TensorMap::BYTES)
            .ok_or_else(missing)?;
        let address = place.first_chunk().ok_or_else(missing)?;
        let address = u64::from_le_bytes(*address) + self.begin;
        let mut last = (self.made.last)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let map = match *last {
            Some((was, map)) if was == address => map,
            _ => {
                let map = devices::driver(device)?.tensor_map(&self.made.tensor, address)?;
                last.insert((address, map)).1
            }
        };
        place.copy_from_slice(map.bytes());
        Ok(())
    }
}

/// The form in which a kernel takes a descriptor. Sizes in 32 bits and strides in 64 bits follow each form.
pub enum Form<'a> {
    /// A tensor map: devices with a copy engine that takes them.
    Map(&'a MapLayout),
    /// Address, sizes, strides and the value of elements outside: machine code for other devices.
    Expanded,
    /// An address: interpreted kernels.
    Address,
}

impl Form<'_> {
    /// Returns the form of the descriptor at a position among a kernel's. Without a binary the kernel is interpreted.
    pub fn of(binary: Option<&BinaryInfo>, position: usize) -> Result<Form<'_>> {
        match binary {
            None => Ok(Form::Address),
            Some(b) if b.maps.is_empty() => Ok(Form::Expanded),
            Some(b) => (b.maps.get(position).map(Form::Map))
                .ok_or_else(|| Error::internal("a build that tells of other tensor maps")),
        }
    }

    /// Adds a descriptor to arguments. Returns the place of the address, and the tensor if a map is to be written there.
    pub fn add(
        &self,
        arguments: &mut Arguments,
        extents: &[i64],
        strides: &[i64],
    ) -> Result<(u32, Option<Tensor>)> {
        let (place, tensor) = match self {
            Form::Map(MapLayout {
                swizzle,
                element,
                element_bytes,
                block,
            }) => {
                let tensor =
                    Tensor::new(*element, *element_bytes, *swizzle, extents, strides, block)?;
                (arguments.map(), Some(tensor))
            }
            Form::Address => (arguments.pointer(0), None),
            Form::Expanded => {
                let place = arguments.pointer(0);
                for n in extents.iter().chain(strides) {
                    arguments.i64(*n);
                }
                // Elements outside are zeros, not NaN.
                arguments.bool(false);
                (place, None)
            }
        };
        for n in extents {
            let n = i32::try_from(*n);
            arguments.i32(n.map_err(|_| Error::unsupported("a tile's tensor beyond 32 bits"))?);
        }
        for s in strides {
            arguments.i64(*s);
        }
        Ok((place as u32, tensor))
    }
}

/// Packs what a launch passes: pointers, numbers, then tensor maps, by the signature of its kernel. `buffers` counts the addresses;
/// `sizes` are the numbers, with those of the maps at the end. Without a binary the kernel is interpreted: in the place of a map
/// it has the address, the sizes and the strides.
pub fn pack(
    signature: &[(String, String)],
    binary: Option<&BinaryInfo>,
    buffers: usize,
    sizes: &[i64],
) -> Result<Packed> {
    let damaged = || Error::input("a stored graph is damaged: arguments of a kernel");
    let maps: Vec<(&str, usize)> = (signature.iter())
        .filter_map(|(_, ty)| Some((ty.as_str(), rank(ty)?)))
        .collect();
    let plain = (signature.len().checked_sub(maps.len())).ok_or_else(damaged)?;
    let pointers = buffers.checked_sub(maps.len()).ok_or_else(damaged)?;
    let numbers = plain.checked_sub(pointers).ok_or_else(damaged)?;
    let of_maps: usize = maps.iter().map(|m| 1 + 2 * m.1).sum();
    if sizes.len() != numbers + of_maps || signature[plain..].iter().any(|s| rank(&s.1).is_none()) {
        return Err(damaged());
    }
    let (sizes, mut rest) = sizes.split_at(numbers);
    // Eight bytes each, and two pointers at the end.
    let mut arguments = Arguments::with_capacity(8 * signature.len() + 16);
    let mut places: SmallVec<[(u32, u64); 16]> = SmallVec::new();
    for (_, ty) in &signature[..pointers] {
        if !ty.starts_with('*') {
            return Err(damaged());
        }
        places.push((arguments.pointer(0) as u32, 0));
    }
    for (v, (name, ty)) in sizes.iter().zip(&signature[pointers..]) {
        match ty.as_str() {
            "i64" => arguments.i64(*v),
            "i32" => arguments.i32(i32::try_from(*v).map_err(|_| {
                Error::unsupported(format!("`{name}` is {v}: the kernel counts in 32 bits"))
            })?),
            other => return Err(Error::internal(format!("an argument of type `{other}`"))),
        };
    }
    let layouts = binary.map(|b| b.maps.as_slice());
    if layouts.is_some_and(|l| l.len() != maps.len()) {
        return Err(Error::internal("a build that tells of other tensor maps"));
    }
    let mut made = Vec::new();
    for (k, (ty, rank)) in maps.iter().enumerate() {
        let (mine, others) = rest.split_at(1 + 2 * rank);
        rest = others;
        let (begin, (extents, strides)) = (mine[0], mine[1..].split_at(*rank));
        let element = match layouts {
            Some(l) => l[k].element_bytes as u64,
            None => element_bytes(ty).ok_or_else(damaged)?,
        };
        let begin = (u64::try_from(begin).ok()).and_then(|b| b.checked_mul(element));
        let begin = begin.ok_or_else(|| Error::internal("a tensor before its buffer"))?;
        let (place, tensor) = Form::of(binary, k)?.add(&mut arguments, extents, strides)?;
        places.push((place, if tensor.is_some() { 0 } else { begin }));
        made.extend(tensor.map(|tensor| Map {
            place,
            begin,
            made: Arc::new(Made::new(tensor)),
        }));
    }
    let scratch = arguments.finish(0) as u32;
    Ok(Packed {
        arguments,
        places,
        scratch,
        maps: made,
    })
}

/// Returns where each argument of a kernel begins, and its bytes. `has_maps` is true if descriptors are tensor maps.
pub fn places(signature: &[(String, String)], has_maps: bool) -> Result<Vec<(u32, u32)>> {
    let mut arguments = Arguments::default();
    let mut out = Vec::new();
    for (_, ty) in signature {
        match (ty.as_str(), rank(ty)) {
            (_, Some(rank)) => {
                if has_maps {
                    out.push((arguments.map(), TensorMap::BYTES));
                } else {
                    out.push((arguments.pointer(0), 8));
                    out.extend((0..2 * rank).map(|_| (arguments.i64(0), 8)));
                    out.push((arguments.bool(false), 1));
                }
                out.extend((0..rank).map(|_| (arguments.i32(0), 4)));
                out.extend((0..rank).map(|_| (arguments.i64(0), 8)));
            }
            ("i1", _) => out.push((arguments.bool(false), 1)),
            ("i32" | "u32" | "fp32", _) => out.push((arguments.i32(0), 4)),
            ("i64" | "u64", _) => out.push((arguments.i64(0), 8)),
            (pointer, _) if pointer.starts_with('*') => out.push((arguments.pointer(0), 8)),
            (other, _) => return Err(Error::internal(format!("an argument of type `{other}`"))),
        }
    }
    let scratch = arguments.finish(0);
    out.extend([(scratch, 8), (scratch + 8, 8)]);
    let narrow = |(at, bytes): (usize, usize)| (at as u32, bytes as u32);
    Ok(out.into_iter().map(narrow).collect())
}

/// Dimensions of the tensor that a parameter of this type describes: `tensordesc<bf16[64, 32]>` has two.
pub fn rank(ty: &str) -> Option<usize> {
    let inside = ty.strip_prefix("tensordesc<")?;
    Some(inside.matches(',').count() + 1)
}

/// Bytes of an element of a descriptor's type.
fn element_bytes(ty: &str) -> Option<u64> {
    let name = ty.strip_prefix("tensordesc<")?.split('[').next()?;
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    let digits = digits.split(|c: char| !c.is_ascii_digit()).next()?;
    Some(digits.parse::<u64>().ok()? / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(types: &[&str]) -> Vec<(String, String)> {
        types
            .iter()
            .map(|t| (String::new(), t.to_string()))
            .collect()
    }

    fn binary() -> BinaryInfo {
        BinaryInfo {
            symbol: String::new(),
            warps: 4,
            ctas: 1,
            shared: 0,
            scratch: 0,
            scratch_align: 1,
            cooperative: false,
            maps: vec![MapLayout {
                swizzle: 3,
                element: 10,
                element_bytes: 2,
                block: vec![64, 64],
            }],
        }
    }

    #[test]
    fn a_map_lies_behind_the_numbers_with_its_sizes_and_strides() {
        let types = signature(&["*bf16", "i32", "tensordesc<bf16[64, 64]>"]);
        let sizes = [7, 16, 100, 200, 200, 1];
        let p = pack(&types, Some(&binary()), 2, &sizes).unwrap();
        // The pointer, the number, the map at a multiple of 64; 32 bytes from where the buffer begins.
        assert_eq!(p.places.as_slice(), [(0, 0), (64, 0)]);
        assert_eq!((p.maps.len(), p.maps[0].begin), (1, 32));
        let b = p.arguments.bytes();
        let int = |at: usize| i32::from_le_bytes(*b[at..].first_chunk().unwrap());
        let long = |at: usize| i64::from_le_bytes(*b[at..].first_chunk().unwrap());
        assert_eq!((int(8), int(192), int(196)), (7, 100, 200));
        assert_eq!((long(200), long(208)), (200, 1));
        assert_eq!((p.scratch, b.len()), (216, 232));
        let places = places(&types, true).unwrap();
        let (at, bytes): (Vec<u32>, Vec<u32>) = places.into_iter().unzip();
        assert_eq!(at, [0, 8, 64, 192, 196, 200, 208, 216, 224]);
        assert_eq!(bytes, [8, 4, 128, 4, 4, 8, 8, 8, 8]);
    }

    #[test]
    fn interpreted_kernels_get_an_address() {
        let types = signature(&["*bf16", "tensordesc<bf16[64, 64]>"]);
        let p = pack(&types, None, 2, &[4, 100, 200, 200, 1]).unwrap();
        assert_eq!(p.places.as_slice(), [(0, 0), (8, 8)]);
        assert!(p.maps.is_empty());
    }

    #[test]
    fn a_descriptor_is_expanded_where_no_engine_takes_maps() {
        let mut arguments = Arguments::default();
        arguments.bool(true);
        let (place, tensor) = (Form::Expanded)
            .add(&mut arguments, &[100, 200], &[208, 1])
            .unwrap();
        assert!(tensor.is_none());
        arguments.f32(1.5);
        arguments.finish(0);
        let b = arguments.bytes();
        let int = |at: usize| i32::from_le_bytes(*b[at..].first_chunk().unwrap());
        let long = |at: usize| i64::from_le_bytes(*b[at..].first_chunk().unwrap());
        // Address, sizes, strides, one byte, sizes again in 32 bits, strides again.
        assert_eq!(place, 8);
        assert_eq!([16, 24, 32, 40].map(long), [100, 200, 208, 1]);
        assert_eq!((b[48], int(52), int(56)), (0, 100, 200));
        assert_eq!((long(64), long(72)), (208, 1));
        let types = signature(&["i1", "tensordesc<fp32[16, 16]>", "fp32"]);
        let (at, bytes): (Vec<u32>, Vec<u32>) = places(&types, false).unwrap().into_iter().unzip();
        assert_eq!(at, [0, 8, 16, 24, 32, 40, 48, 52, 56, 64, 72, 80, 88, 96]);
        assert_eq!(bytes, [1, 8, 8, 8, 8, 8, 1, 4, 4, 8, 8, 4, 8, 8]);
        assert_eq!(b.len(), 104);
    }

    #[test]
    fn equal_descriptors_share_a_map() {
        let b = binary();
        let form = Form::of(Some(&b), 0).unwrap();
        let mut arguments = Arguments::default();
        let (place, tensor) = form.add(&mut arguments, &[64, 64], &[64, 1]).unwrap();
        let made = Arc::new(Made::new(tensor.unwrap()));
        *made.last.lock().unwrap() = Some((4096, TensorMap([7; TensorMap::BYTES])));
        for _ in 0..2 {
            // No driver is there: a map that had to be made would be an error.
            let mut bytes = arguments.bytes().to_vec();
            bytes[place as usize..][..8].copy_from_slice(&4096u64.to_le_bytes());
            let map = Map::new(place, made.clone());
            map.write(&mut bytes, Device::CPU).unwrap();
            assert_eq!(bytes[place as usize..][..128], [7; 128]);
        }
    }

    #[test]
    fn what_does_not_fit_the_signature_is_an_error() {
        let types = signature(&["*bf16", "tensordesc<bf16[64, 64]>"]);
        for (buffers, sizes) in [(1, vec![0, 1, 1, 1, 1]), (2, vec![]), (3, vec![0; 5])] {
            assert!(pack(&types, Some(&binary()), buffers, &sizes).is_err());
        }
        let none = BinaryInfo {
            maps: Vec::new(),
            ..binary()
        };
        assert!(pack(&types, Some(&none), 2, &[0, 100, 200, 200, 1]).is_err());
    }

    #[test]
    fn types_tell_rank_and_bytes() {
        assert_eq!(rank("tensordesc<fp32[4, 8, 16]>"), Some(3));
        assert_eq!(rank("*fp32"), None);
        let bytes = |t| element_bytes(t);
        assert_eq!(bytes("tensordesc<fp32[4, 8]>"), Some(4));
        assert_eq!(bytes("tensordesc<bf16[4, 8]>"), Some(2));
        assert_eq!(bytes("tensordesc<i8[4, 8]>"), Some(1));
    }
}
