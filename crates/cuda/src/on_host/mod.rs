//! A device of the tests: kernels compiled by the host's C++ compiler, a thread for each of CUDA's.
//!
//! Memory is a file, which each launch maps at the same address. So the text of the kernels, their
//! arguments and all that a model asks of a driver are those of a GPU. Work that is started runs
//! when it is waited for, one piece each time that the signal is polled.

mod cases;
mod resident_cases;
mod serving_cases;
mod wavefront_cases;

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::arguments::{Address, Bytes};
use crate::driver::{Buffer, Driver, DriverError, Grid, Pinned, Synchronisation};
use crate::{Device, Kernel};

/// Where launches map the memory: in the part of the address space that sanitizers leave.
const BASE: Address = 0x7ea0_0000_0000;

/// Flags of the compiler beside those of the tests, such as `-fsanitize=thread`.
const FLAGS: &str = "GATESTREAM_CXX_FLAGS";
/// If set, a host without a C++ compiler fails the tests instead of skipping them.
const REQUIRED: &str = "GATESTREAM_REQUIRE_CXX";

/// The host as a device: one of its streams.
pub struct Host {
    device: Device,
    memory: Arc<Memory>,
    queue: Arc<Queue>,
}

/// A stream: the first one runs as late as it may, the others as early. What has no order runs in
/// the reverse one.
#[derive(Default)]
struct Queue {
    work: Mutex<VecDeque<Work>>,
    is_early: bool,
}

/// Work that was started and has not run.
enum Work {
    Run(Box<dyn FnOnce() + Send>),
    /// The stream waits for a place in another.
    Follow(HostEvent),
}

impl Queue {
    fn start(&self, work: Work) {
        self.work.lock().unwrap().push_back(work);
        while self.is_early && !self.waits() && self.run_one() {}
    }

    /// Whether the oldest work waits for another stream.
    fn waits(&self) -> bool {
        match self.work.lock().unwrap().front() {
            Some(Work::Follow(event)) => !event.is_past.load(Ordering::Relaxed),
            _ => false,
        }
    }

    fn follows_next(&self) -> bool {
        matches!(self.work.lock().unwrap().front(), Some(Work::Follow(_)))
    }

    /// Runs the oldest work, if there is any. Other streams run as far as it waits for them.
    fn run_one(&self) -> bool {
        let Some(oldest) = self.work.lock().unwrap().pop_front() else {
            return false;
        };
        match oldest {
            Work::Run(work) => work(),
            Work::Follow(event) => {
                while self.follows_next() {
                    self.run_one();
                }
                while !event.is_past.load(Ordering::Relaxed) && event.queue.run_one() {}
            }
        }
        true
    }
}

/// A place in a stream.
pub struct HostEvent {
    queue: Arc<Queue>,
    is_past: Arc<AtomicBool>,
}

struct Memory {
    folder: tempfile::TempDir,
    file: File,
    used: AtomicU64,
    launches: AtomicUsize,
}

/// A part of the file.
pub struct HostBuffer {
    memory: Arc<Memory>,
    queue: Arc<Queue>,
    offset: u64,
    bytes: usize,
}

impl Buffer for HostBuffer {
    fn address(&self) -> Address {
        BASE + self.offset
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Host {
    /// `None` without a C++ compiler.
    pub fn with_limits_of(device: Device) -> Option<Host> {
        compiler()?;
        let folder = tempfile::tempdir().unwrap();
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(folder.path().join("memory")).unwrap();
        Some(Host {
            device,
            memory: Arc::new(Memory {
                folder,
                file,
                used: AtomicU64::new(0),
                launches: AtomicUsize::new(0),
            }),
            queue: Arc::default(),
        })
    }
}

/// The compiler, if there is one.
fn compiler() -> Option<&'static str> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = FOUND.get_or_init(|| Command::new("c++").arg("--version").output().is_ok());
    if !found {
        assert!(std::env::var_os(REQUIRED).is_none(), "no C++ compiler");
        eprintln!("skipped: no C++ compiler (c++)");
    }
    found.then_some("c++")
}

/// Programs by their text; each is compiled once.
fn program(kernel: &Kernel) -> PathBuf {
    static MADE: OnceLock<(tempfile::TempDir, Mutex<Programs>)> = OnceLock::new();
    let (folder, made) = MADE.get_or_init(|| (tempfile::tempdir().unwrap(), Mutex::default()));
    let text = kernel.on_machine(include_str!("machine.cuh")).text;
    let once = {
        let mut made = made.lock().unwrap();
        let count = made.len();
        let entry = made.entry(format!("{}\n{text}", kernel.name));
        Arc::clone(entry.or_insert_with(|| Arc::new((count, OnceLock::new()))))
    };
    let (index, compiled) = &*once;
    let path = folder.path().join(format!("kernel{index}"));
    compiled.get_or_init(|| {
        let source = path.with_extension("cpp");
        fs::write(&source, text + include_str!("harness.cpp")).unwrap();
        let mut command = Command::new("c++");
        command
            .args("-std=c++20 -O1 -ffp-contract=off -Wall -Wextra -Werror -pthread".split(' '))
            // The pragmas are those of another compiler.
            .args("-Wno-unknown-pragmas -Wno-unused-parameter".split(' '))
            .args(std::env::var(FLAGS).unwrap_or_default().split_whitespace())
            .arg(format!("-DKERNEL={}", kernel.name))
            .arg(format!("-DBASE={BASE:#x}ull"))
            .arg("-o")
            .args([&path, &source]);
        let made = command.output().unwrap();
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
    });
    path
}

type Programs = HashMap<String, Arc<(usize, OnceLock<()>)>>;

impl Host {
    /// Adds work, which runs at another time than the host's calls: what overwrites memory that it
    /// still needs gives wrong bits.
    fn start(&self, work: impl FnOnce() + Send + 'static) -> Result<(), DriverError> {
        self.queue.start(Work::Run(Box::new(work)));
        Ok(())
    }
}

impl Memory {
    fn write(&self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).unwrap();
    }

    fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.file.read_exact_at(&mut read, offset).unwrap();
        read
    }
}

impl Pinned for HostBuffer {
    fn address(&self) -> Address {
        Buffer::address(self)
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.bytes);
        self.memory.write(self.offset + offset as u64, bytes);
    }

    fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset + bytes.len() <= self.bytes);
        let read = self.memory.read(self.offset + offset as u64, bytes.len());
        bytes.copy_from_slice(&read);
    }

    fn word(&self) -> u32 {
        self.queue.run_one();
        let mut bytes = [0; 4];
        self.read(0, &mut bytes);
        u32::from_le_bytes(bytes)
    }
}

impl Driver for Host {
    type Buffer = HostBuffer;
    type Pinned = HostBuffer;
    type Function = PathBuf;
    type Event = HostEvent;

    fn stream(&self) -> Result<Host, DriverError> {
        Ok(Host {
            device: self.device,
            memory: Arc::clone(&self.memory),
            queue: Arc::new(Queue {
                is_early: true,
                ..Queue::default()
            }),
        })
    }

    fn record(&self) -> Result<HostEvent, DriverError> {
        let (queue, is_past) = (Arc::clone(&self.queue), Arc::default());
        let passed = Arc::clone(&is_past);
        self.start(move || AtomicBool::store(&passed, true, Ordering::Relaxed))?;
        Ok(HostEvent { queue, is_past })
    }

    fn follow(&self, event: &HostEvent) -> Result<(), DriverError> {
        let (queue, is_past) = (Arc::clone(&event.queue), Arc::clone(&event.is_past));
        self.queue.start(Work::Follow(HostEvent { queue, is_past }));
        Ok(())
    }

    fn device(&self) -> Device {
        self.device
    }

    fn allocate(&self, bytes: usize) -> Result<HostBuffer, DriverError> {
        // A page for each buffer and one between: what is written past the end is seen.
        let pages = (bytes.div_ceil(4096) + 1) as u64;
        let offset = self.memory.used.fetch_add(pages * 4096, Ordering::Relaxed);
        self.memory.file.set_len(offset + pages * 4096).unwrap();
        Ok(HostBuffer {
            memory: Arc::clone(&self.memory),
            queue: Arc::clone(&self.queue),
            offset,
            bytes,
        })
    }

    fn write(&self, to: &mut HostBuffer, offset: usize, bytes: &[u8]) -> Result<(), DriverError> {
        assert!(offset + bytes.len() <= to.bytes);
        let (memory, at, bytes) = (
            Arc::clone(&to.memory),
            to.offset + offset as u64,
            bytes.to_vec(),
        );
        self.start(move || memory.write(at, &bytes))
    }

    fn read(&self, from: &HostBuffer, offset: usize, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.wait()?;
        Pinned::read(from, offset, bytes);
        Ok(())
    }

    fn pinned(&self, bytes: usize) -> Result<HostBuffer, DriverError> {
        self.allocate(bytes)
    }

    fn start_write(
        &self,
        to: &mut HostBuffer,
        from: &HostBuffer,
        bytes: usize,
    ) -> Result<(), DriverError> {
        assert!(bytes <= from.bytes && bytes <= to.bytes);
        let memory = Arc::clone(&to.memory);
        let (from, to) = (from.offset, to.offset);
        self.start(move || memory.write(to, &memory.read(from, bytes)))
    }

    fn check(&self) -> Result<(), DriverError> {
        Ok(())
    }

    fn wait(&self) -> Result<(), DriverError> {
        while self.queue.run_one() {}
        Ok(())
    }

    fn clear(
        &self,
        buffer: &mut HostBuffer,
        offset: usize,
        bytes: usize,
    ) -> Result<(), DriverError> {
        self.write(buffer, offset, &vec![0; bytes])
    }

    fn function(&self, kernel: &Kernel) -> Result<PathBuf, DriverError> {
        Ok(program(kernel))
    }

    fn launch(&self, program: &PathBuf, grid: &Grid, arguments: &Bytes) -> Result<(), DriverError> {
        assert!(grid.shared_bytes <= self.device.shared_bytes as usize);
        let blocks = grid.blocks[0] * grid.blocks[1];
        if grid.synchronisation == Synchronisation::Cooperative {
            assert!(blocks <= self.device.multiprocessors as usize);
        }
        let (memory, program) = (Arc::clone(&self.memory), program.clone());
        let (grid, arguments) = (*grid, *arguments);
        self.start(move || memory.launch(&program, &grid, &arguments))
    }
}

impl Memory {
    fn launch(&self, program: &Path, grid: &Grid, arguments: &Bytes) {
        let numbers = [
            grid.blocks[0],
            grid.blocks[1],
            grid.threads,
            grid.shared_bytes,
            usize::from(grid.synchronisation != Synchronisation::None),
            usize::from(grid.synchronisation == Synchronisation::Cluster),
            arguments.as_slice().len(),
        ];
        let mut launch: Vec<u8> = Vec::new();
        launch.extend(
            numbers
                .iter()
                .flat_map(|number| (*number as u32).to_le_bytes()),
        );
        launch.extend(arguments.as_slice());
        let index = self.launches.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.path();
        let file = folder.join(format!("launch{index}"));
        fs::write(&file, launch).unwrap();
        let mut command = Command::new(program);
        command.arg(folder.join("memory"));
        command.arg(self.used.load(Ordering::Relaxed).to_string());
        let ended = command.arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{:?} {said}", ended.status);
    }
}
