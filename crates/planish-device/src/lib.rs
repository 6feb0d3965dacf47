//! The machines planish runs on: memory, programs, sequences, clocks, identity; no op names.
