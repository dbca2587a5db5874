//! Patterns of the shell: `*`, `?`, `[a-z]`, `[!a]`, and a backslash that takes a letter as it is (glob(7)). Names are bytes.

/// Whether a name matches. Takes time in proportion to both lengths at most, whatever the pattern.
pub(super) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    // Where the last star was, and where what it stands for ends at least.
    let mut star: Option<(usize, usize)> = None;
    loop {
        let step = match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, place));
                at += 1;
                continue;
            }
            Some(_) if place < name.len() => one(&pattern[at..], name[place]),
            None if place == name.len() => return true,
            _ => None,
        };
        match (step, star) {
            (Some(length), _) => {
                at += length;
                place += 1;
            }
            (None, Some((behind, end))) if end < name.len() => {
                (at, place) = (behind, end + 1);
                star = Some((behind, end + 1));
            }
            _ => return false,
        }
    }
}

/// The bytes of the pattern's first item, if it matches the letter.
fn one(pattern: &[u8], letter: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == letter).then_some(2),
        [b'[', rest @ ..] => match set(rest, letter) {
            Some((is_in, length)) => is_in.then_some(1 + length),
            // One that is not closed stands for itself.
            None => (letter == b'[').then_some(1),
        },
        [plain, ..] => (*plain == letter).then_some(1),
        [] => None,
    }
}

/// Whether a letter is in a set, and the set's length behind its bracket.
fn set(rest: &[u8], letter: u8) -> Option<(bool, usize)> {
    let is_negated = matches!(rest.first(), Some(b'!' | b'^'));
    let first = usize::from(is_negated);
    let (mut at, mut is_in) = (first, false);
    loop {
        match &rest[at.min(rest.len())..] {
            [] => return None,
            [b']', ..] if at > first => return Some((is_in != is_negated, at + 1)),
            [low, b'-', high, ..] if *high != b']' => {
                is_in |= (*low..=*high).contains(&letter);
                at += 3;
            }
            [plain, ..] => {
                is_in |= *plain == letter;
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "any.thing", true),
            ("*.jpg", "a.b.jpg", true),
            ("*.jpg", "a.jpg.b", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("?", "", false),
            ("??", "ab", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("[a-]", "-", true),
            ("[", "[", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("*[0-9]", "f12", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn no_pattern_takes_long() {
        let (pattern, name) = ("*a".repeat(2000), "a".repeat(1000) + "b");
        assert!(!matches(pattern.as_bytes(), name.as_bytes()));
    }
}
