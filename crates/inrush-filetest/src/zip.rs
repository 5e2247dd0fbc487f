//! Stored zip files, taken apart and put together with right checksums: damage reaches the readers of their entries.

/// Changes one file of a stored zip and packs it again. `change` is given the file's bytes, how many of the buffer they
/// are and the largest size they may have, and gives their new number. Data that is no zip is changed as it stands.
pub fn mutate_zip(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    change: impl Fn(&mut [u8], usize, usize) -> usize,
) -> usize {
    // Now and then the container itself.
    let files = match seed % 8 {
        0 => None,
        _ => unpack(&data[..size]),
    };
    let Some(mut files) = files.filter(|f| !f.is_empty()) else {
        return change(data, size, max_size);
    };
    // Small files are read by parsers, large ones are weights.
    let at = (seed / 8) as usize % files.len();
    let file = &mut files[at].1;
    let (len, room) = (file.len(), file.len() + 256);
    file.resize(room, 0);
    let len = change(file, len, room);
    file.truncate(len);
    let packed = pack(&files);
    if packed.len() > max_size.min(data.len()) {
        return change(data, size, max_size);
    }
    data[..packed.len()].copy_from_slice(&packed);
    packed.len()
}

/// Names and contents of a zip's stored files, found by their local headers.
fn unpack(bytes: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let u16_at = |p: usize| Some(u16::from_le_bytes(bytes.get(p..p + 2)?.try_into().ok()?));
    let u32_at = |p: usize| Some(u32::from_le_bytes(bytes.get(p..p + 4)?.try_into().ok()?));
    let end = bytes.windows(4).rposition(|w| w == b"PK\x05\x06")?;
    let (count, mut at) = (u16_at(end + 10)?, u32_at(end + 16)? as usize);
    if at == u32::MAX as usize {
        // The 64-bit directory, whose record ends in its position.
        let record = bytes.windows(4).rposition(|w| w == b"PK\x06\x06")?;
        at = u32_at(record + 48)? as usize;
    }
    let mut out = Vec::new();
    for _ in 0..count.min(200) {
        if bytes.get(at..at + 4)? != b"PK\x01\x02" {
            return None;
        }
        let (name, extra, comment) = (u16_at(at + 28)?, u16_at(at + 30)?, u16_at(at + 32)?);
        let name_at = at + 46;
        let (mut len, mut local) = (u32_at(at + 24)? as usize, u32_at(at + 42)? as usize);
        if len == u32::MAX as usize || local == u32::MAX as usize {
            // Sizes of 64 bits stand in the extra field: whole size, stored size, position.
            let mut field = name_at + name as usize;
            while u16_at(field)? != 1 {
                field += 4 + u16_at(field + 2)? as usize;
            }
            let mut next = field + 4;
            if len == u32::MAX as usize {
                len = u32_at(next)? as usize;
                next += 8;
            }
            if u32_at(at + 20)? == u32::MAX {
                next += 8;
            }
            if local == u32::MAX as usize {
                local = u32_at(next)? as usize;
            }
        }
        let data = local + 30 + u16_at(local + 26)? as usize + u16_at(local + 28)? as usize;
        let name_bytes = bytes.get(name_at..name_at + name as usize)?.to_vec();
        out.push((
            name_bytes,
            bytes.get(data..data.checked_add(len)?)?.to_vec(),
        ));
        at = name_at + name as usize + extra as usize + comment as usize;
    }
    Some(out)
}

/// A zip of these files, stored, with right checksums.
fn pack(files: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut central) = (Vec::new(), Vec::new());
    for (name, data) in files {
        let crc = crc32fast::hash(data).to_le_bytes();
        let len = (data.len() as u32).to_le_bytes();
        let name_len = (name.len() as u16).to_le_bytes();
        let sizes = [&crc[..], &len, &len, &name_len, &[0, 0]].concat();
        let at = (out.len() as u32).to_le_bytes();
        let head = b"PK\x03\x04\x14\x00\x00\x00\x00\x00\x00\x00\x21\x00";
        out.extend([&head[..], &sizes, name, data].concat());
        let head = b"PK\x01\x02\x14\x00\x14\x00\x00\x00\x00\x00\x00\x00\x21\x00";
        central.extend([&head[..], &sizes, &[0; 10], &at, name].concat());
    }
    let count = (files.len() as u16).to_le_bytes();
    let (len, at) = (
        (central.len() as u32).to_le_bytes(),
        (out.len() as u32).to_le_bytes(),
    );
    out.extend(&central);
    let end = [
        b"PK\x05\x06\x00\x00\x00\x00",
        &count[..],
        &count,
        &len,
        &at,
        &[0, 0],
    ];
    out.extend(end.concat());
    out
}
