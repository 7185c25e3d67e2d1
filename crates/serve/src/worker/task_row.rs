//! One row of a worker's task.

use std::sync::Arc;

use super::values::RequestValues;
use crate::scheduler::Row;

/// A row of a task, with its request's values.
pub(crate) struct TaskRow<R> {
    pub row: Row,
    pub values: Arc<RequestValues<R>>,
}
