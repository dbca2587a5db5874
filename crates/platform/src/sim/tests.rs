//! The simulator is trusted by every test above it, so it is tested against its own fault model, rule by rule.

mod disk;
mod platter;
mod power;
mod world;
