//! The messages in a body of gRPC: each has a flag of compression and its length before it.

use super::Bodies;
use crate::error::InferError;

/// Bytes of the flag and the length.
const HEAD: usize = 5;

/// Finds the ends of messages in a body as it comes.
pub struct Messages {
    /// Bytes of a message, at most.
    most: usize,
    head: [u8; HEAD],
    /// Bytes of the current message that have come, its head included.
    begun: usize,
}

impl Messages {
    pub fn new(most: usize) -> Messages {
        Messages {
            most,
            head: [0; HEAD],
            begun: 0,
        }
    }

    /// Bytes that have come of a message that is not complete.
    pub fn begun(&self) -> usize {
        self.begun
    }

    /// Takes the next bytes. Returns the number of messages that they end.
    ///
    /// # Errors
    /// A message is larger than the limit.
    pub fn take(&mut self, mut data: &[u8]) -> Result<usize, InferError> {
        let mut ended = 0;
        while !data.is_empty() {
            if let Some(missing) = HEAD.checked_sub(self.begun).filter(|&missing| missing > 0) {
                let (part, rest) = data.split_at(missing.min(data.len()));
                self.head[self.begun..][..part.len()].copy_from_slice(part);
                self.begun += part.len();
                data = rest;
            }
            if self.begun < HEAD {
                break;
            }
            let [_, length @ ..] = self.head;
            let length = u32::from_be_bytes(length) as usize;
            if length > self.most {
                return Err(Bodies::too_large(self.most));
            }
            let missing = HEAD + length - self.begun;
            let part = missing.min(data.len());
            self.begun += part;
            data = &data[part..];
            if part == missing {
                self.begun = 0;
                ended += 1;
            }
        }
        Ok(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_found_wherever_the_body_is_cut() {
        let body = [
            &[0, 0, 0, 0, 3, 1, 2, 3][..],
            &[1, 0, 0, 0, 0],
            &[0, 0, 0, 0, 2, 4],
        ]
        .concat();
        for size in 1..=body.len() {
            let mut messages = Messages::new(3);
            let ended = body
                .chunks(size)
                .map(|part| messages.take(part).expect("small"));
            assert_eq!(ended.sum::<usize>(), 2, "{size}");
            assert_eq!(messages.begun(), 6);
        }
        let large = [0, 0, 0, 0, 4];
        assert!(Messages::new(3).take(&large).is_err());
        assert!(Messages::new(4).take(&large).is_ok());
    }
}
