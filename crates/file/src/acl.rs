//! POSIX access control lists as Linux stores them in extended attributes, and how they and the mode follow each other.
//!
//! The kernel checks permissions by the lists that we give it; it is ours to inherit default lists, to keep the mode and the
//! access list in step, and to drop a list that says no more than the mode. Algorithms: POSIX 1003.1e draft 17, section 23.

use base::codec::{Reader, Writer};

use crate::failure::FileError;

/// The access list's attribute.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// A directory's default list for what is made in it.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJECT: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJECT: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    tag: u16,
    rights: u16,
    id: u32,
}

fn decode(value: &[u8]) -> Result<Vec<Rule>, FileError> {
    let invalid = |_| FileError::Invalid("an access control list that cannot be read");
    let mut reader = Reader::new(value);
    if reader.u32("version").map_err(invalid)? != VERSION {
        return Err(FileError::NotSupported("this version of access control lists"));
    }
    let mut rules = Vec::new();
    while reader.remaining() > 0 {
        let tag = reader.u16("tag").map_err(invalid)?;
        let rights = reader.u16("rights").map_err(invalid)?;
        let id = reader.u32("id").map_err(invalid)?;
        rules.push(Rule { tag, rights, id });
    }
    let count = |tag| rules.iter().filter(|rule| rule.tag == tag).count();
    let is_known = rules
        .iter()
        .all(|rule| matches!(rule.tag, USER_OBJECT | USER | GROUP_OBJECT | GROUP | MASK | OTHER) && rule.rights <= 7);
    let needs_mask = count(USER) + count(GROUP) > 0;
    let is_whole = count(USER_OBJECT) == 1
        && count(GROUP_OBJECT) == 1
        && count(OTHER) == 1
        && (count(MASK) == 1 || (count(MASK) == 0 && !needs_mask));
    if is_known && is_whole { Ok(rules) } else { Err(FileError::Invalid("an access control list without its parts")) }
}

fn encode(rules: &[Rule]) -> Vec<u8> {
    let mut writer = Writer::with_capacity(4 + 8 * rules.len());
    writer.u32(VERSION);
    for rule in rules {
        writer.u16(rule.tag).u16(rule.rights).u32(rule.id);
    }
    writer.into_bytes()
}

/// Whether a default list may be stored; an empty one means removal.
pub(crate) fn check(value: &[u8]) -> Result<(), FileError> {
    decode(value).map(|_| ())
}

/// What a new file gets from its directory's default list.
pub(crate) struct Inherited {
    /// The mode, cut by the list.
    pub(crate) mode: u32,
    /// The access list, unless the mode says it all.
    pub(crate) access: Option<Vec<u8>>,
}

/// The access list and mode of a file made with `mode` under a default list.
pub(crate) fn inherit(default: &[u8], mode: u32) -> Result<Inherited, FileError> {
    let mut rules = decode(default)?;
    let bits = |shift: u32| u16::try_from((mode >> shift) & 7).expect("three bits");
    let group = group_class(&rules);
    let mut new_mode = mode & !0o777;
    for rule in &mut rules {
        let shift = match rule.tag {
            USER_OBJECT => 6,
            OTHER => 0,
            tag if tag == group => 3,
            _ => continue,
        };
        rule.rights &= bits(shift);
        new_mode |= u32::from(rule.rights) << shift;
    }
    let access = (!is_minimal(&rules)).then(|| encode(&rules));
    Ok(Inherited { mode: new_mode, access })
}

/// The access list after a chmod to `mode`.
pub(crate) fn change_mode(access: &[u8], mode: u32) -> Result<Vec<u8>, FileError> {
    let mut rules = decode(access)?;
    let group = group_class(&rules);
    for rule in &mut rules {
        let shift = match rule.tag {
            USER_OBJECT => 6,
            OTHER => 0,
            tag if tag == group => 3,
            _ => continue,
        };
        rule.rights = u16::try_from((mode >> shift) & 7).expect("three bits");
    }
    Ok(encode(&rules))
}

/// The permission bits that an access list means, and the list to store: none if the bits say it all.
pub(crate) fn to_mode(access: &[u8]) -> Result<(u32, Option<Vec<u8>>), FileError> {
    let rules = decode(access)?;
    let group = group_class(&rules);
    let mut mode = 0;
    for rule in &rules {
        mode |= match rule.tag {
            USER_OBJECT => u32::from(rule.rights) << 6,
            OTHER => u32::from(rule.rights),
            tag if tag == group => u32::from(rule.rights) << 3,
            _ => 0,
        };
    }
    Ok((mode, (!is_minimal(&rules)).then(|| access.to_vec())))
}

/// The rule that the group bits of the mode stand for.
fn group_class(rules: &[Rule]) -> u16 {
    if rules.iter().any(|rule| rule.tag == MASK) { MASK } else { GROUP_OBJECT }
}

fn is_minimal(rules: &[Rule]) -> bool {
    rules.iter().all(|rule| matches!(rule.tag, USER_OBJECT | GROUP_OBJECT | OTHER))
}

#[cfg(test)]
mod tests {
    use super::{GROUP_OBJECT, MASK, OTHER, Rule, USER, USER_OBJECT, change_mode, decode, encode, inherit, to_mode};

    fn list(rules: &[(u16, u16)]) -> Vec<u8> {
        encode(&rules.iter().map(|(tag, rights)| Rule { tag: *tag, rights: *rights, id: 7 }).collect::<Vec<_>>())
    }

    #[test]
    fn a_minimal_list_is_the_mode() {
        let minimal = list(&[(USER_OBJECT, 6), (GROUP_OBJECT, 4), (OTHER, 0)]);
        assert_eq!(to_mode(&minimal).unwrap(), (0o640, None));
        assert_eq!(inherit(&minimal, 0o777).unwrap().mode, 0o640);
        assert!(inherit(&minimal, 0o777).unwrap().access.is_none());
    }

    #[test]
    fn the_mask_is_the_group_class() {
        let full = list(&[(USER_OBJECT, 7), (USER, 6), (GROUP_OBJECT, 5), (MASK, 7), (OTHER, 5)]);
        assert_eq!(to_mode(&full).unwrap().0, 0o775);
        let changed = decode(&change_mode(&full, 0o640).unwrap()).unwrap();
        assert_eq!(changed.iter().map(|rule| rule.rights).collect::<Vec<_>>(), [6, 6, 5, 4, 0]);
        let inherited = inherit(&full, 0o2644).unwrap();
        assert_eq!(inherited.mode, 0o2644, "set-id bits stay, rights are cut by both");
        assert!(inherited.access.is_some());
    }

    #[test]
    fn incomplete_and_cut_lists_are_refused() {
        let full = list(&[(USER_OBJECT, 7), (USER, 6), (GROUP_OBJECT, 5), (MASK, 7), (OTHER, 5)]);
        for cut in 0..full.len() {
            assert!(decode(&full[..cut]).is_err(), "cut at {cut}");
        }
        assert!(decode(&list(&[(USER_OBJECT, 7), (USER, 6), (GROUP_OBJECT, 5), (OTHER, 5)])).is_err(), "no mask");
        assert!(decode(&list(&[(USER_OBJECT, 9), (GROUP_OBJECT, 5), (OTHER, 5)])).is_err(), "unknown rights");
    }
}
