//! Whole nodes on simulated disks. One program, because each would compile what the others do once more.

mod damage;
mod reclaim;
mod seeds;
