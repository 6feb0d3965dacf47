//! NVIDIA cards through the driver, and their run-time compiler; both are found at run time or not at all.

pub mod nvrtc;
