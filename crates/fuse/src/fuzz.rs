//! Requests that no kernel sends, and listings of any entries. Targets of the crate `fuzz`.

use fuzz::{CASES, Target, no_repair};
use zerocopy::{FromBytes, IntoBytes};

use crate::answer::Entry;
use crate::buffer::PAGE;
use crate::directory::DirectoryWriter;
use crate::parked::{self, Encoded};
use crate::request::{Dialect, Header, Reader, Request, answer_limit, decode, forgotten, interrupted};
use crate::settings::{Settings, negotiate};
use crate::{Exchange, wire};

const TARGETS: &[Target] = &[
    Target { name: "request", cases: CASES, samples: requests, repair: no_repair, check: request },
    Target { name: "listing", cases: CASES, samples: listings, repair: no_repair, check: listing },
    Target { name: "init", cases: CASES, samples: inits, repair: no_repair, check: init },
    Target { name: "parked", cases: CASES, samples: sessions, repair: no_repair, check: session },
];

/// Opcode, words of extensions, bytes of the first piece, and the pieces.
fn input(opcode: u8, words: u8, first: u8, body: &[u8]) -> Vec<u8> {
    [&[opcode, words, first], body].concat()
}

/// A request for each opcode: as many zeroes as its arguments need, then names and data.
fn requests() -> Vec<Vec<u8>> {
    let mut samples = Vec::new();
    for opcode in 0..70_u8 {
        let body = |arguments: usize| [&vec![0; arguments], &b"name\0other\0data"[..]].concat();
        let is_request = |arguments: &usize| {
            let body = body(*arguments);
            let (arguments, names) = body.split_at(*arguments);
            let reader = Reader::new(arguments, names, 0).expect("no extensions");
            decode(u32::from(opcode), reader, Dialect { setxattr_ext: true }).is_ok()
        };
        if let Some(arguments) = (0..=128).step_by(8).find(is_request) {
            samples.push(input(opcode, 0, 255, &body(arguments)));
            samples.push(input(opcode, 0, u8::try_from(arguments).expect("at most 128"), &body(arguments)));
        }
    }
    assert!(samples.len() > 80, "most opcodes have a sample");
    samples
}

/// Every slice that a request holds.
fn slices<'a>(request: &Request<'a>) -> Vec<&'a [u8]> {
    match *request {
        Request::Lookup { name }
        | Request::MkNod { name, .. }
        | Request::MkDir { name, .. }
        | Request::Unlink { name }
        | Request::RmDir { name }
        | Request::GetXattr { name, .. }
        | Request::RemoveXattr { name }
        | Request::Create { name, .. } => vec![name],
        Request::SymLink { name, .. } => vec![name],
        Request::Rename { name, new_name, .. } => vec![name, new_name],
        Request::Link { new_name, .. } => vec![new_name],
        Request::SetXattr { name, .. } => vec![name],
        _ => Vec::new(),
    }
}

fn request(bytes: &[u8]) -> Result<(), String> {
    let [opcode, words, first, body @ ..] = bytes else { return Err("short".to_owned()) };
    let (one, two) = body.split_at(usize::from(*first).min(body.len()));
    let reader = Reader::new(one, two, u16::from(*words)).map_err(|error| format!("extensions: {error:?}"))?;
    let header = Header { opcode: u32::from(*opcode), ..Default::default() };
    let forgets = forgotten(&header, reader).map_or(0, Iterator::count);
    assert!(forgets <= 1 + body.len() / size_of::<wire::ForgetOne>(), "{forgets} forgets in {} bytes", body.len());
    let _ = interrupted(reader);
    let mut exchange = Exchange::rehearsal(u32::from(*opcode), 1, body).expect("memory");
    let room = exchange.reply_room().len();
    assert!(room <= 1 << 20, "{room} bytes for an answer");

    let decoded = decode(u32::from(*opcode), reader, Dialect { setxattr_ext: true });
    let decoded = decoded.map_err(|error| format!("{opcode} {error:?}"))?;
    for name in slices(&decoded) {
        assert!(!name.is_empty() && !name.contains(&0), "{decoded:?}");
    }
    let data = match decoded {
        Request::Write { data, .. } | Request::Ioctl { data, .. } | Request::SetXattr { value: data, .. } => data,
        _ => &[],
    };
    assert!(slices(&decoded).iter().map(|slice| slice.len()).sum::<usize>() + data.len() <= body.len());
    if let Some(limit) = answer_limit(&decoded) {
        assert!(limit as usize >= room || room == 1 << 20 || exchange.reply_room().len() <= limit as usize);
    }
    Ok(())
}

fn listings() -> Vec<Vec<u8>> {
    // Bytes of room, then for each entry whether it is with attributes, its kind and its name.
    let entries = [&[1, 8, 4][..], b"name", &[0, 4, 1], b"d", &[1, 10, 0], &[0, 1, 200], &[b'x'; 200]].concat();
    vec![[&[0, 2][..], &entries].concat(), [&[100, 0][..], &entries].concat()]
}

/// What was packed is what is unpacked, and nothing was written beyond the room.
fn listing(bytes: &[u8]) -> Result<(), String> {
    const GUARD: u8 = 0xa5;
    let (room, mut rest) = bytes.split_first_chunk::<2>().ok_or("short")?;
    let room = usize::from(u16::from_le_bytes(*room)) % 8192;
    let mut memory = vec![GUARD; room + 64];
    let mut writer = DirectoryWriter::new(&mut memory[..room]);
    let mut packed = Vec::new();
    while let [plus, kind, length, tail @ ..] = rest {
        let (name, tail) = tail.split_at_checked(usize::from(*length)).ok_or("a name cut short")?;
        rest = tail;
        let (node, cookie, kind) = (packed.len() as u64 + 2, packed.len() as u64 + 9, u32::from(*kind));
        let entry = Entry { node, ..Entry::default() };
        let is_added = match plus % 2 {
            1 => writer.add_plus(&entry, node, cookie, kind, name),
            _ => writer.add(node, cookie, kind, name),
        };
        if !is_added {
            break;
        }
        packed.push((plus % 2 == 1, node, cookie, kind, name));
    }
    let used = writer.bytes();
    assert!(used <= room && used.is_multiple_of(8), "{used} of {room}");
    assert!(memory[room..].iter().all(|byte| *byte == GUARD), "written beyond the room");
    let mut at = 0;
    for (is_plus, node, cookie, kind, name) in packed {
        at += if is_plus { size_of::<wire::EntryOut>() } else { 0 };
        let (head, text) = wire::Dirent::read_from_prefix(&memory[at..used]).expect("a whole record");
        assert_eq!((head.node, head.cookie, head.kind), (node, cookie, kind));
        assert_eq!(&text[..head.name_bytes as usize], name);
        at = (at + size_of::<wire::Dirent>() + name.len()).next_multiple_of(8);
    }
    assert_eq!(at, used);
    Ok(())
}

fn inits() -> Vec<Vec<u8>> {
    let sent = wire::InitIn { major: 7, minor: 45, readahead_bytes_max: 1 << 17, flags: u32::MAX };
    let extension = wire::InitExtIn { flags2: u32::MAX, ..Default::default() };
    let old = wire::InitIn { minor: 23, flags: 0, ..sent };
    vec![
        [sent.as_bytes(), extension.as_bytes()].concat(),
        [old.as_bytes(), wire::InitExtIn::default().as_bytes()].concat(),
    ]
}

/// Nothing is taken that was not offered, and buffers have sensible sizes.
fn init(bytes: &[u8]) -> Result<(), String> {
    let (sent, rest) = wire::InitIn::read_from_prefix(bytes).map_err(|_| "short")?;
    let (extension, _) = wire::InitExtIn::read_from_prefix(rest).map_err(|_| "short")?;
    for ring in [false, true] {
        let (answer, negotiated) = negotiate(&sent, &extension, &Settings::default(), ring);
        assert_eq!((answer.flags & !sent.flags, answer.flags2 & !extension.flags2), (0, 0), "taken without offer");
        assert!((8192..=32 << 20).contains(&negotiated.payload_bytes), "{} bytes", negotiated.payload_bytes);
        assert!(negotiated.write_bytes_max as usize <= negotiated.payload_bytes);
        assert!(negotiated.minor <= sent.minor && negotiated.readahead_bytes_max <= sent.readahead_bytes_max);
    }
    Ok(())
}

/// As one process hands them to the next: with a slot, and without.
fn sessions() -> Vec<Vec<u8>> {
    let mut parked = parked::tests::parked();
    let with_slot = parked.encode();
    parked.slots.clear();
    vec![with_slot, parked.encode()]
}

/// Before any memory is made for it: no more slots than there are bytes for, and each request fits its slot.
fn session(bytes: &[u8]) -> Result<(), String> {
    let found = Encoded::decode(bytes).map_err(|error| error.to_string())?;
    assert!(found.slots.len() <= bytes.len(), "{} slots", found.slots.len());
    for slot in &found.slots {
        assert!(slot.bytes <= 1 << 30 && slot.payload.len() + 2 * PAGE <= slot.bytes, "{slot:?}");
    }
    Ok(())
}

#[test]
fn requests_of_no_kernel_are_refused_or_understood() {
    fuzz::run(env!("CARGO_MANIFEST_DIR"), TARGETS);
}
