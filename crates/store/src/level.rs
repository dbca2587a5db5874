//! Levels: what is asked for against the loss of disks, and what a pack was made for.
//!
//! Not here: which disks those are (`pool`), bringing packs onto as many (`copies`).

/// Most disks that something lies on at once.
pub const COPIES_MAX: u8 = 8;

/// What is asked for against the loss of disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resilience {
    /// As the node's settings say at any time.
    #[default]
    OfNode,
    /// So many copies, each on a disk of its own, whatever the settings say. 1 to [`COPIES_MAX`].
    Copies(u8),
}

/// What a pack is made for. One byte in packs and in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    copies: u8,
    is_chosen: bool,
}

const CHOSEN: u8 = 0x80;

impl Level {
    /// Levels that the lanes of a disk tell apart: the node's, and each number of copies that may be chosen.
    pub(crate) const LANES: usize = 1 + COPIES_MAX as usize;

    /// What is asked for, where the node's settings say so many copies.
    pub(crate) fn of(resilience: Resilience, of_node: u8) -> Level {
        let (copies, is_chosen) = match resilience {
            Resilience::OfNode => (of_node, false),
            Resilience::Copies(copies) => (copies, true),
        };
        Level { copies: copies.clamp(1, COPIES_MAX), is_chosen }
    }

    /// Whether somebody chose it, whatever the node's settings say.
    pub(crate) fn is_chosen(self) -> bool {
        self.is_chosen
    }

    /// On how many disks it is to be.
    pub(crate) fn copies(self) -> u8 {
        self.copies
    }

    /// What is asked for it where the node's settings say `of_node` copies now.
    pub(crate) fn now(self, of_node: u8) -> Level {
        if self.is_chosen { self } else { Level { copies: self.copies.max(of_node), ..self } }
    }

    /// Below [`Level::LANES`].
    pub(crate) fn lane(self) -> usize {
        if self.is_chosen { usize::from(self.copies) } else { 0 }
    }

    pub(crate) fn code(self) -> u8 {
        if self.is_chosen { self.copies | CHOSEN } else { self.copies }
    }

    pub(crate) fn from_code(code: u8) -> Option<Level> {
        let copies = code & !CHOSEN;
        (1..=COPIES_MAX).contains(&copies).then_some(Level { copies, is_chosen: code & CHOSEN != 0 })
    }
}

impl Default for Level {
    fn default() -> Level {
        Level { copies: 1, is_chosen: false }
    }
}
