//! What a barrier costs, and what opening a region costs: `cargo bench --bench barrier`.
//!
//! One iteration of `barrier/N` is one barrier of N threads; of `region/N` one empty run.

use std::time::Instant;

use cellstream::execute::team::Team;
use criterion::{Criterion, criterion_group, criterion_main};

fn barrier(criterion: &mut Criterion) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Beyond the number of cores it is the system's scheduler that is measured.
    let sizes = [1, 2, 4, 8, 16]
        .into_iter()
        .filter(|&threads| threads <= cores);
    for threads in sizes.chain([2 * cores]) {
        let mut team = Team::with_threads(threads).expect("a team");
        team.pin_caller();
        criterion.bench_function(&format!("barrier/{threads}"), |bencher| {
            bencher.iter_custom(|iterations| {
                let start = Instant::now();
                team.run(|worker| {
                    for _ in 0..iterations {
                        worker.barrier();
                    }
                })
                .expect("no panic");
                start.elapsed()
            });
        });
        criterion.bench_function(&format!("region/{threads}"), |bencher| {
            bencher.iter(|| team.run(|_| {}).expect("no panic"));
        });
    }
}

criterion_group!(benches, barrier);
criterion_main!(benches);
