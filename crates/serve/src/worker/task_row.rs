//! A row of a task.

use std::sync::Arc;

use super::values::RequestValues;
use crate::scheduler::Row;

/// A row of a task, with the values of its request.
pub(crate) struct TaskRow<R> {
    pub row: Row,
    pub values: Arc<RequestValues<R>>,
}
