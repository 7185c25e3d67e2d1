//! How many plans for shapes of inputs are made at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use gatestream_serve::scheduler::ClientId;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Permits to make a plan. A client needs one of its own first, of as many as there are of all: so
/// it waits in the line of all with few requests, and many new shapes of it do not hold up others.
pub struct Planners {
    all: Arc<Semaphore>,
    count: usize,
    of_clients: Mutex<HashMap<ClientId, Weak<Semaphore>>>,
}

impl Planners {
    pub fn new(count: usize) -> Planners {
        Planners {
            all: Arc::new(Semaphore::new(count)),
            count,
            of_clients: Mutex::default(),
        }
    }

    /// Waits for the permits of a plan.
    ///
    /// # Errors
    /// None is known.
    pub async fn permits(
        &self,
        client: ClientId,
    ) -> Result<[OwnedSemaphorePermit; 2], AcquireError> {
        let of_client = self.of_client(client).acquire_owned().await?;
        let of_all = Arc::clone(&self.all).acquire_owned().await?;
        Ok([of_client, of_all])
    }

    fn of_client(&self, client: ClientId) -> Arc<Semaphore> {
        let of_clients = self.of_clients.lock();
        let mut of_clients = of_clients.unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = of_clients.get(&client).and_then(Weak::upgrade) {
            return known;
        }
        of_clients.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Semaphore::new(self.count));
        of_clients.insert(client, Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use futures_util::FutureExt;

    #[test]
    fn many_plans_of_a_client_do_not_hold_up_another() {
        let planners = Planners::new(2);
        let permits = |client| Box::pin(planners.permits(ClientId(client)));
        let mut running = Vec::from([(); 2].map(|()| permits(1).now_or_never().expect("room")));
        let mut waiting: Vec<_> = (0..9).map(|_| permits(1)).collect();
        assert!({ waiting.iter_mut() }.all(|plan| plan.now_or_never().is_none()));
        let mut other = permits(2);
        assert!((&mut other).now_or_never().is_none());
        drop(running.pop());
        let of_other = other.now_or_never().expect("the next one").expect("open");
        assert!((&mut waiting[0]).now_or_never().is_none());
        drop(of_other);
        assert!((&mut waiting[0]).now_or_never().is_some());
    }
}
