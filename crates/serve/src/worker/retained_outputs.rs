//! Results of nodes that wait for their readers.

/// Results that are retained for their readers, by the number of the output. Chains retain none,
/// and the list is empty.
#[derive(Default)]
pub(super) struct RetainedOutputs {
    by_output: Vec<Option<Box<[f32]>>>,
    count: usize,
}

impl RetainedOutputs {
    pub fn bytes(&self) -> usize {
        let values = self.by_output.iter().flatten();
        size_of_val(&self.by_output[..]) + values.map(|kept| size_of_val(&kept[..])).sum::<usize>()
    }

    /// Number of retained values.
    #[cfg(all(test, not(loom)))]
    pub fn values(&self) -> usize {
        let retained = self.by_output.iter().flatten();
        retained.map(|kept| kept.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn get(&self, number: u32) -> Option<&[f32]> {
        self.by_output.get(number as usize)?.as_deref()
    }

    pub fn has(&self, number: u32) -> bool {
        self.get(number).is_some()
    }

    pub fn take(&mut self, number: u32) -> Option<Box<[f32]>> {
        let retained = self.by_output.get_mut(number as usize)?.take()?;
        self.count -= 1;
        Some(retained)
    }

    /// Retains output `number` of `outputs`.
    pub fn put(&mut self, (number, outputs): (u32, usize), values: Box<[f32]>) {
        if self.by_output.len() < outputs {
            self.by_output.resize_with(outputs, || None);
        }
        let before = self.by_output[number as usize].replace(values);
        self.count += usize::from(before.is_none());
    }
}
