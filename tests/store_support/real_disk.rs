//! What a disk of a test does as the real one does it.

/// The methods of a [`sala_chat::store::Disk`] of these names, as the real disk has them.
macro_rules! as_the_real_disk {
    ($($name:ident)+) => { $(as_the_real_disk!(@ $name);)+ };
    (@ create) => {
        fn create(&self, path: &std::path::Path) -> std::io::Result<Box<dyn sala_chat::store::DiskFile>> {
            sala_chat::store::RealDisk.create(path)
        }
    };
    (@ rename) => {
        fn rename(&self, from: &std::path::Path, to: &std::path::Path) -> std::io::Result<()> {
            sala_chat::store::RealDisk.rename(from, to)
        }
    };
    (@ sync_dir) => {
        fn sync_dir(&self, dir: &std::path::Path) -> std::io::Result<()> {
            sala_chat::store::RealDisk.sync_dir(dir)
        }
    };
    (@ remove) => {
        fn remove(&self, path: &std::path::Path) -> std::io::Result<()> {
            sala_chat::store::RealDisk.remove(path)
        }
    };
    (@ read_at) => {
        fn read_at(&self, path: &std::path::Path, offset: u64, len: u64) -> std::io::Result<Vec<u8>> {
            sala_chat::store::RealDisk.read_at(path, offset, len)
        }
    };
    (@ look) => {
        fn look(&self, path: &std::path::Path) -> std::io::Result<sala_chat::store::Look> {
            sala_chat::store::RealDisk.look(path)
        }
    };
    (@ list) => {
        fn list(&self, dir: &std::path::Path) -> std::io::Result<Vec<std::path::PathBuf>> {
            sala_chat::store::RealDisk.list(dir)
        }
    };
    (@ make_dir) => {
        fn make_dir(&self, dir: &std::path::Path) -> std::io::Result<()> {
            sala_chat::store::RealDisk.make_dir(dir)
        }
    };
    (@ free_bytes) => {
        fn free_bytes(&self, dir: &std::path::Path) -> std::io::Result<u64> {
            sala_chat::store::RealDisk.free_bytes(dir)
        }
    };
}
