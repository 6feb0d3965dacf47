//! What the groups of a grid know of each other after some rounds.

/// The last value of each of `groups` groups.
pub fn values(groups: usize, rounds: usize) -> Vec<f64> {
    let mut v: Vec<u32> = (0..groups as u32).collect();
    for r in 0..rounds as u32 {
        let mut neighbours = v.clone();
        neighbours.rotate_left(1);
        for (v, n) in v.iter_mut().zip(neighbours) {
            *v = v.wrapping_mul(1_664_525).wrapping_add(n).wrapping_add(r);
        }
    }
    v.into_iter().map(f64::from).collect()
}
