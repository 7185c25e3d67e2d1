//! A list's memory, used again for elements that borrow from something else.

/// The same room without what it held: the standard library collects what a vector gives into the vector's own memory, where
/// elements are of one size. So a list of borrowed buffers that is made anew for every batch asks nothing of the allocator.
///
/// ```ignore
/// let mut list: Vec<&[f32]> = std::mem::take(&mut self.list); // a `Vec<&'static [f32]>`
/// list.extend(/* what lives as long as this call */);
/// self.list = reused(list);
/// ```
pub fn reused<T, U>(mut list: Vec<T>) -> Vec<U> {
    const { assert!(size_of::<T>() == size_of::<U>() && align_of::<T>() == align_of::<U>()) };
    list.clear();
    list.into_iter()
        .map(|_| unreachable!("it is empty"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_stays() {
        let values = [1.0];
        let mut list: Vec<&[f32]> = Vec::with_capacity(8);
        let address = list.as_ptr().cast::<()>();
        list.extend([&values[..], &values[..]]);
        let list: Vec<&'static [f32]> = reused(list);
        assert_eq!((list.len(), list.capacity()), (0, 8));
        assert_eq!(list.as_ptr().cast(), address);
    }
}
