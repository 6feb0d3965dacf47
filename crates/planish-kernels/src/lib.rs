//! The op table: specification, reference, space, cost, cases and kernels of every op; quantised block formats.
