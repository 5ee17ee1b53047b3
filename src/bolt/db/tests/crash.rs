//! Losses of power and disks that fail.
