//! The rows with the states of each slot. Row 0 has zeros, each slot has two other rows: a step
//! reads one and writes the other, since a block that is done must not overwrite what another still
//! reads.

/// The row of zeros.
const ZEROS: u32 = 0;

/// See the [module](self).
pub(super) struct SlotRows {
    /// By slot: the row with its states.
    current: Vec<u32>,
    /// Of the present step, by its rows: where their states are before it, and after it.
    before: Vec<u32>,
    after: Vec<u32>,
}

impl SlotRows {
    /// All slots have states of zeros.
    pub fn new(slots: usize) -> SlotRows {
        SlotRows {
            current: vec![ZEROS; slots],
            before: Vec::new(),
            after: Vec::new(),
        }
    }

    /// Rows of the states of so many slots.
    pub fn count(slots: usize) -> Option<usize> {
        slots.checked_mul(2)?.checked_add(1)
    }

    /// The row with the states of a slot.
    pub fn current(&self, slot: usize) -> u32 {
        self.current[slot]
    }

    /// The states of a slot are zeros.
    pub fn set_zeros(&mut self, slot: usize) {
        self.current[slot] = ZEROS;
    }

    /// The states of a slot are in the returned row from now on.
    pub fn set_first(&mut self, slot: usize) -> u32 {
        self.current[slot] = first_row(slot);
        self.current[slot]
    }

    /// Begins a step of these slots. Without a change, returns a slot that occurs twice, whose two
    /// sequences would write one row.
    pub fn advance(&mut self, slots: &[usize]) -> Result<(), usize> {
        let mut sorted = slots.to_vec();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(pair[0]);
        }
        self.before.clear();
        self.after.clear();
        for &slot in slots {
            let (before, first) = (self.current[slot], first_row(slot));
            let after = if before == first { first + 1 } else { first };
            self.before.push(before);
            self.after.push(after);
            self.current[slot] = after;
        }
        Ok(())
    }

    /// The rows that the present step reads.
    pub fn before(&self) -> &[u32] {
        &self.before
    }

    /// The rows that the present step writes.
    pub fn after(&self) -> &[u32] {
        &self.after
    }
}

/// Slots were checked to be few enough.
fn first_row(slot: usize) -> u32 {
    1 + 2 * slot as u32
}
