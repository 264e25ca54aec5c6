//! The emulator's library, several times: a copy keeps the running kernel's coordinates, shared memory and words in its globals and
//! runs one launch at a time, so concurrent tests with a device use as many copies.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

type LaunchFn = unsafe extern "C" fn(*const c_char, *const c_uint, *const c_uint, c_uint, *mut *mut c_void) -> c_int;
type ErrorFn = unsafe extern "C" fn() -> *const c_char;

/// Most copies: each has stacks and shared memory of its own.
const MOST: usize = 8;

/// One copy, loaded for as long as the process lives.
#[derive(Clone, Copy)]
struct Loaded {
    launch: LaunchFn,
    error: ErrorFn,
}

impl Loaded {
    fn open(library: &Path) -> Result<Loaded, String> {
        let path = CString::new(library.as_os_str().as_encoded_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: loads a library the caller named; its initialisers are those of plain C++.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: after a failed `dlopen` the text is set and ours until the next call.
            let words = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(format!("{}: {}", library.display(), words.to_string_lossy()));
        }
        let find = |name: &CStr| {
            // SAFETY: the handle is open.
            let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if symbol.is_null() {
                Err(format!("{}: no {}", library.display(), name.to_string_lossy()))
            } else {
                Ok(symbol)
            }
        };
        // SAFETY: the emulator defines both symbols with exactly these types.
        unsafe {
            Ok(Loaded {
                launch: std::mem::transmute::<*mut c_void, LaunchFn>(find(c"sala_emulator_launch")?),
                error: std::mem::transmute::<*mut c_void, ErrorFn>(find(c"sala_emulator_error")?),
            })
        }
    }
}

/// The copies of one library.
pub(super) struct Library {
    free: Mutex<Vec<Loaded>>,
    returned: Condvar,
}

impl Library {
    /// Those of this library, which all devices of the process share.
    ///
    /// # Errors
    /// The loader's words, or the missing symbol.
    pub(super) fn of(library: &Path) -> Result<Arc<Library>, String> {
        static ALL: Mutex<Option<HashMap<PathBuf, Arc<Library>>>> = Mutex::new(None);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        if let Some(there) = all.get(library) {
            return Ok(Arc::clone(there));
        }
        let copies = std::thread::available_parallelism().map_or(1, usize::from).min(MOST);
        let mut free = vec![Loaded::open(library)?];
        // The loader knows a file again by its inode: copies are files of their own, of which it keeps what it needs. Where there is no place
        // for them, fewer do.
        let more = tempfile::tempdir().ok().into_iter().flat_map(|dir| {
            let copy = move |i| {
                let copy = dir.path().join(format!("{i}.so"));
                std::fs::copy(library, &copy).ok()?;
                Loaded::open(&copy).ok()
            };
            (1..copies).map_while(copy).collect::<Vec<_>>()
        });
        free.extend(more);
        let loaded = Arc::new(Library { free: Mutex::new(free), returned: Condvar::new() });
        all.insert(library.to_path_buf(), Arc::clone(&loaded));
        Ok(loaded)
    }

    /// Runs a launch on a copy that is free; what went wrong, in the emulator's words.
    ///
    /// # Safety
    /// `params` are as many and of such types as the kernel has parameters, and what they point to may be used as it uses it.
    pub(super) unsafe fn launch(
        &self,
        kernel: &CStr,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        params: &mut [*mut c_void],
    ) -> Result<(), String> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = loop {
            match free.pop() {
                Some(copy) => break copy,
                None => free = self.returned.wait(free).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(free);
        // SAFETY: the caller's; no other thread uses this copy.
        let code =
            unsafe { (copy.launch)(kernel.as_ptr(), grid.as_ptr(), block.as_ptr(), shared_bytes, params.as_mut_ptr()) };
        let outcome = if code == 0 {
            Ok(())
        } else {
            // SAFETY: the copy returns a string of its own, good until its next launch.
            Err(unsafe { CStr::from_ptr((copy.error)()) }.to_string_lossy().into_owned())
        };
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(copy);
        self.returned.notify_one();
        outcome
    }
}
