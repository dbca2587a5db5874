//! Levels: what is asked for against the loss of disks, and what a pack was made for.
//!
//! Not here: which disks those are (`pool`), bringing packs onto as many (`copies`), cutting them into fragments (`fragmenting`).

use std::fmt;
use std::str::FromStr;

/// Most disks that something lies on at once.
pub const COPIES_MAX: u8 = 8;

/// On so many disks trees lie, where the node has them and nobody asks for more.
const TREE_COPIES: u8 = 2;

/// What is asked for against the loss of disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resilience {
    /// As the node's settings say at any time.
    #[default]
    OfNode,
    /// So many copies, each on a disk of its own, whatever the settings say. 1 to [`COPIES_MAX`].
    Copies(u8),
    /// Fragments, each on a disk of its own, whatever the settings say.
    Fragments(Erasure),
}

/// An erasure code, k+m: what is cut into k fragments of data gets m of parity, and any k of all give it back (Reed-Solomon).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Erasure {
    data: u8,
    parity: u8,
}

impl Erasure {
    /// Most fragments of data.
    pub const DATA_MAX: u8 = 16;
    /// Most fragments of parity.
    pub const PARITY_MAX: u8 = 4;

    /// `None` for fewer than two fragments of data, none of parity, or too many of either.
    #[must_use]
    pub fn new(data: u8, parity: u8) -> Option<Erasure> {
        let fits = (2..=Erasure::DATA_MAX).contains(&data) && (1..=Erasure::PARITY_MAX).contains(&parity);
        fits.then_some(Erasure { data, parity })
    }

    /// k.
    #[must_use]
    pub fn data(self) -> u8 {
        self.data
    }

    /// m: so many disks may be lost.
    #[must_use]
    pub fn parity(self) -> u8 {
        self.parity
    }

    /// All fragments, each on a disk of its own.
    #[must_use]
    pub fn count(self) -> usize {
        usize::from(self.data) + usize::from(self.parity)
    }

    /// Copies that survive as much: what is not cut yet lies on so many disks.
    #[must_use]
    pub fn copies(self) -> u8 {
        self.parity + 1
    }
}

impl fmt::Display for Erasure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.data, self.parity)
    }
}

impl FromStr for Erasure {
    type Err = String;

    fn from_str(text: &str) -> Result<Erasure, String> {
        let fields = text.split_once('+').and_then(|(data, parity)| Some((data.parse().ok()?, parity.parse().ok()?)));
        fields.and_then(|(data, parity)| Erasure::new(data, parity)).ok_or_else(|| {
            let (data, parity) = (Erasure::DATA_MAX, Erasure::PARITY_MAX);
            format!("expected k+m such as 4+2, with k from 2 to {data} and m from 1 to {parity}")
        })
    }
}

/// What a pack is made for. One byte in packs and in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    /// On how many disks it is, as long as it is not cut into fragments.
    copies: u8,
    is_chosen: bool,
    erasure: Option<Erasure>,
}

const CHOSEN: u8 = 0x80;
/// The bits below are those of an erasure code then.
const CODED: u8 = 0x40;
const PARITY_SHIFT: u32 = 4;

impl Level {
    /// Levels that the lanes of a disk tell apart: the node's, and of those that may be chosen each number of copies and of parity.
    pub(crate) const LANES: usize = 1 + COPIES_MAX as usize + Erasure::PARITY_MAX as usize;

    /// So many copies, as the node's settings say.
    pub(crate) fn of_node(copies: u8) -> Level {
        Level { copies: copies.clamp(1, COPIES_MAX), is_chosen: false, erasure: None }
    }

    fn coded(erasure: Erasure) -> Level {
        Level { copies: erasure.copies(), is_chosen: false, erasure: Some(erasure) }
    }

    /// Of a pack none of whose headers can be read where the most copies that any file asks for are so many: as if that one had asked (K-15).
    pub(crate) fn lost(floor: u8) -> Level {
        Level::of_node(floor)
    }

    /// What the node's settings say.
    pub(crate) fn of_settings(copies: u8, fragments: Option<Erasure>) -> Level {
        fragments.map_or(Level::of_node(copies), Level::coded)
    }

    /// What trees get where so many copies are asked for and the node has so many disks (K-14).
    pub(crate) fn of_trees(copies: u8, disks: usize) -> Level {
        Level::of_node(if disks < usize::from(TREE_COPIES) { copies } else { copies.max(TREE_COPIES) })
    }

    /// The same for trees that are stored already. Those that were stored when there were more disks need no second one where there is none.
    pub(crate) fn now_of_trees(self, of_trees: Level) -> Level {
        if self.copies <= TREE_COPIES { of_trees } else { self.now(of_trees) }
    }

    /// Of the copies of trees those that somebody asked for, where the node asks for so many: the second one comes by itself.
    pub(crate) fn asked_of_trees(self, asked: u8) -> u8 {
        if self.copies <= TREE_COPIES { self.copies.min(asked) } else { self.copies }
    }

    /// What is asked for, where the node's settings say this.
    pub(crate) fn of(resilience: Resilience, of_node: Level) -> Level {
        match resilience {
            Resilience::OfNode => of_node,
            Resilience::Copies(copies) => Level { is_chosen: true, ..Level::of_node(copies) },
            Resilience::Fragments(erasure) => Level { is_chosen: true, ..Level::coded(erasure) },
        }
    }

    /// Whether somebody chose it, whatever the node's settings say.
    pub(crate) fn is_chosen(self) -> bool {
        self.is_chosen
    }

    /// On how many disks it is to be: one more than may be lost.
    pub(crate) fn copies(self) -> u8 {
        self.copies
    }

    /// What it is to be cut into.
    pub(crate) fn erasure(self) -> Option<Erasure> {
        self.erasure
    }

    /// What is asked for it where the node's settings say this now.
    pub(crate) fn now(self, of_node: Level) -> Level {
        if self.is_chosen || self.copies > of_node.copies { self } else { of_node }
    }

    /// Below [`Level::LANES`].
    pub(crate) fn lane(self) -> usize {
        match (self.is_chosen, self.erasure) {
            (false, _) => 0,
            (true, None) => usize::from(self.copies),
            (true, Some(erasure)) => usize::from(COPIES_MAX + erasure.parity),
        }
    }

    pub(crate) fn code(self) -> u8 {
        let chosen = if self.is_chosen { CHOSEN } else { 0 };
        chosen
            | match self.erasure {
                None => self.copies,
                Some(Erasure { data, parity }) => CODED | (parity - 1) << PARITY_SHIFT | (data - 1),
            }
    }

    pub(crate) fn from_code(code: u8) -> Option<Level> {
        let is_chosen = code & CHOSEN != 0;
        let rest = code & !CHOSEN;
        if rest & CODED != 0 {
            let (data, parity) = ((rest & 0xf) + 1, (rest >> PARITY_SHIFT & 3) + 1);
            return Erasure::new(data, parity).map(|erasure| Level { is_chosen, ..Level::coded(erasure) });
        }
        (1..=COPIES_MAX).contains(&rest).then_some(Level { is_chosen, ..Level::of_node(rest) })
    }
}

impl Default for Level {
    fn default() -> Level {
        Level::of_node(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_has_a_byte_of_its_own() {
        let all: Vec<Level> = (0..=u8::MAX).filter_map(Level::from_code).collect();
        let coded = 15 * usize::from(Erasure::PARITY_MAX);
        assert_eq!(all.len(), 2 * (usize::from(COPIES_MAX) + coded));
        for code in 0..=u8::MAX {
            let Some(level) = Level::from_code(code) else { continue };
            assert_eq!(level.code(), code);
            assert!(level.lane() < Level::LANES && (1..=COPIES_MAX).contains(&level.copies()));
        }
    }

    #[test]
    fn an_erasure_code_is_read_as_it_is_written() {
        assert_eq!("4+2".parse(), Ok(Erasure { data: 4, parity: 2 }));
        assert_eq!(Erasure::new(16, 4).unwrap().to_string(), "16+4");
        for wrong in ["", "4", "+2", "4+", "1+1", "4+0", "17+1", "4+5", "4+2+1", "-4+2", "4 + 2"] {
            let told = wrong.parse::<Erasure>().unwrap_err();
            assert!(told.starts_with("expected k+m such as 4+2"), "{wrong}: {told}");
        }
    }

    #[test]
    fn trees_lie_on_two_disks_where_there_are_two() {
        let of = |copies, disks| Level::of_trees(copies, disks).copies();
        assert_eq!([of(1, 1), of(1, 2), of(1, 3), of(2, 1), of(3, 3)], [1, 2, 2, 2, 3]);
        let (one, two, three) = (Level::of_node(1), Level::of_node(2), Level::of_node(3));
        assert_eq!([one.now_of_trees(two), two.now_of_trees(one), two.now_of_trees(three)], [two, one, three]);
        assert_eq!(three.now_of_trees(two), three);
        assert_eq!([one, two, three].map(|level| level.asked_of_trees(1)), [1, 1, 3]);
        assert_eq!([one, two, three].map(|level| level.asked_of_trees(2)), [1, 2, 3]);
    }

    #[test]
    fn settings_raise_what_nobody_chose_and_lower_nothing() {
        let (four_two, three) = (Level::of_settings(1, Erasure::new(4, 2)), Level::of_node(3));
        assert_eq!(three.now(four_two), four_two);
        assert_eq!(four_two.now(three), three);
        assert_eq!(four_two.now(Level::of_node(1)), four_two);
        let chosen = Level::of(Resilience::Copies(1), four_two);
        assert_eq!(chosen.now(four_two), chosen);
    }
}
