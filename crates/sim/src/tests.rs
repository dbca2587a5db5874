//! Whole nodes on simulated disks.

mod damage;
mod reclaim;
mod seeds;
