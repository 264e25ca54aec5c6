//! State that is copied to the host and back: at once, in pieces from files, and during answers.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use sala_chat::backend::cuda::Cache;
use sala_chat::engine::protocol::{Cancel, PIECE_BYTES, RowSource, RowsFault};

use super::*;

#[test]
fn rows_read_together_equal_rows_written_separately() {
    // Together longer than a staging buffer; the rows' arrays are short and odd ones among them.
    let lightning = lightning();
    let spec = sparse();
    for mut b in [device(), paged(Guards::On)] {
        b.seek(0).unwrap();
        let mut states = Vec::new();
        for of in 0..21u32 {
            let values: Vec<u8> = (0..16 * 128 * 128u32).flat_map(|i| (i ^ (of << 20)).to_le_bytes()).collect();
            let image =
                ImageTensor { name: "state".into(), dtype: Dtype::F32, shape: vec![16, 128, 128], data: values.into() };
            let mut state = b.recurrent(&lightning).unwrap();
            b.write_states(&mut [(&mut state, Some(&image))]).unwrap();
            states.push((state, image));
        }
        let refs: Vec<_> = states.iter().map(|(state, _)| state).collect();
        let read = b.read_states(&refs).unwrap();
        assert_eq!(read.len(), states.len());
        assert!(
            read.iter().zip(&states).all(|(read, (_, image))| read.data == image.data && read.shape == image.shape)
        );
        assert!(b.read_states(&[]).unwrap().is_empty());

        // The other way round: written together, in another order and the first to zero, and read each on its own.
        let images: Vec<ImageTensor> = states.iter().rev().map(|(_, image)| image.clone()).collect();
        let wanted = |of: usize| images.get(of).filter(|_| of > 0);
        let mut all: Vec<_> = states.iter_mut().enumerate().map(|(of, (state, _))| (state, wanted(of))).collect();
        b.write_states(&mut all).unwrap();
        for (of, (state, _)) in states.iter().enumerate() {
            let read = b.read_states(&[state]).unwrap().remove(0);
            match wanted(of) {
                Some(image) => assert!(read.data == image.data, "state {of}"),
                None => assert!(read.data.iter().all(|byte| *byte == 0)),
            }
        }
        b.write_states(&mut []).unwrap();

        let mut caches = Vec::new();
        for of in 0..4u8 {
            let mut rows = image(&spec, 0, 5_003);
            for tensor in &mut rows.tensors {
                tensor.data = tensor.data.iter().map(|byte| byte ^ of).collect::<Vec<u8>>().into();
            }
            let mut cache = b.cache(&spec, 1 << 14).unwrap();
            b.reserve(&mut cache, 5_003).unwrap();
            b.restore_rows(&mut [(3, &mut cache)], &[Arc::new(rows.clone()) as Arc<dyn RowSource>]).unwrap();
            b.sync_rows(5_003).unwrap();
            caches.push((cache, rows));
        }
        let refs: Vec<&Cache> = caches.iter().map(|(cache, _)| cache).collect();
        let read = b.read_all_rows(&refs, 0..5_003).unwrap();
        for (read, (_, rows)) in read.iter().zip(&caches) {
            assert!(read.iter().map(|t| &t.data).eq(rows.tensors.iter().map(|t| &t.data)));
            assert_eq!(read.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ROW_ARRAYS);
        }
        let part = b.read_all_rows(&refs, 4_000..4_001).unwrap();
        let sizes: Vec<usize> = part[2].iter().map(|t| t.data.len()).collect();
        assert_eq!((part.len(), sizes), (4, vec![256, 256, 0, 0]));
        b.check_guards().unwrap();
    }
}

#[test]
fn an_image_holds_the_state_at_its_request() {
    // Together more than may be on its way at a time: some of it is read while the asker waits.
    const ROUNDS: u32 = 40;
    let (lightning, spec) = (lightning(), sparse());
    let mut b = device();
    b.seek(0).unwrap();
    let mut states: Vec<_> = (0..15).map(|_| b.recurrent(&lightning).unwrap()).collect();
    let mut cache = b.cache(&spec, 1 << 10).unwrap();
    b.reserve(&mut cache, 700).unwrap();
    let mut left = Vec::new();
    for round in 0..ROUNDS {
        let values: Vec<u8> = (0..16 * 128 * 128u32).flat_map(|i| (i ^ (round << 20)).to_le_bytes()).collect();
        let image =
            ImageTensor { name: "state".into(), dtype: Dtype::F32, shape: vec![16, 128, 128], data: values.into() };
        states.iter_mut().for_each(|state| b.write_states(&mut [(state, Some(&image))]).unwrap());
        let mut rows = self::image(&spec, 0, 700);
        for tensor in &mut rows.tensors {
            tensor.name.truncate(tensor.name.len() - ".3".len());
            tensor.data = tensor.data.iter().map(|byte| byte ^ round as u8).collect::<Vec<u8>>().into();
        }
        b.write_rows(&mut cache, 0, &rows.tensors.iter().collect::<Vec<_>>()).unwrap();
        let states = b.read_states(&states.iter().collect::<Vec<_>>()).unwrap();
        left.push((image, states, rows, b.read_all_rows(&[&cache], 0..700).unwrap()));
    }
    // Copies in flight still arrive when the device is closed.
    drop((states, cache, b));
    for (image, states, rows, read) in left {
        assert!(states.len() == 15 && states.iter().all(|state| state.data == image.data));
        assert!(read[0].iter().map(|t| &t.data).eq(rows.tensors.iter().map(|t| &t.data)));
    }
}

/// A file with damage in its second piece.
#[derive(Debug)]
struct Bad(RowsImage);

impl RowSource for Bad {
    fn start(&self) -> u64 {
        self.0.start()
    }
    fn rows(&self) -> u64 {
        self.0.rows()
    }
    fn array(&self, name: &str) -> Option<(Dtype, Vec<usize>)> {
        self.0.array(name)
    }
    fn fill(&self, name: &str, at: usize, into: &mut [u8]) -> Result<(), RowsFault> {
        match at {
            0 => self.0.fill(name, at, into),
            _ => Err(RowsFault::new("damaged: part of it")),
        }
    }
    fn load(&self, name: &str) -> Result<ImageTensor, RowsFault> {
        self.0.load(name)
    }
}

#[test]
fn rows_stream_from_several_files_and_a_bad_one_is_reported() {
    stream_in(device());
    stream_in(paged(Guards::Off));
}

fn stream_in(mut b: Cuda) {
    let spec = sparse();
    let mut cache = b.cache(&spec, 1 << 20).unwrap();
    // Longer than all slots together, and no multiple of a piece.
    let cuts = [0, 50_000, 50_064, 120_001];
    b.reserve(&mut cache, cuts[3]).unwrap();
    let images: Vec<RowsImage> = cuts.windows(2).map(|c| image(&spec, c[0], c[1] - c[0])).collect();
    // Damage shows when the rows are wanted, and before anybody has them.
    let bad: Arc<dyn RowSource> = Arc::new(Bad(images[0].clone()));
    b.restore_rows(&mut [(3, &mut cache)], &[bad]).unwrap();
    let error = b.read_rows(&cache, 0..cuts[1]).unwrap_err();
    assert!(error.to_string().contains("damaged: part of it"), "{error}");
    // Whatever waits for them fails, once: then they are given up, and the cache can be filled by reading.
    assert!(b.sync_rows(cuts[1]).is_err());
    b.sync_rows(0).unwrap();
    assert!(!b.rows_in_flight());
    assert!(b.read_rows(&cache, 0..cuts[1]).is_ok());
    let feeds = images.iter().map(|i| Arc::new(i.clone()) as Arc<dyn RowSource>);
    let feeds: Vec<Arc<dyn RowSource>> = feeds.collect();
    b.restore_rows(&mut [(3, &mut cache)], &feeds).unwrap();
    for (image, cut) in images.iter().zip(cuts.windows(2)) {
        let rows = b.read_rows(&cache, cut[0]..cut[1]).unwrap();
        for (here, wanted) in rows.iter().zip(&image.tensors) {
            assert_eq!(layer_tensor(&here.name, 3), wanted.name);
            assert_eq!(here.shape, wanted.shape);
            assert!(here.data == wanted.data, "{}", wanted.name);
        }
    }
}

/// What [`Gated`] gives of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// Nothing.
    Shut,
    /// A few blocks at once, more of them slowly, and none to be begun once half of all is given.
    Ajar,
    /// Everything, at once.
    Open,
}

/// A disk that delivers keys and values when the test allows: the order does not depend on the load of the machine.
#[derive(Debug)]
struct Gated {
    image: RowsImage,
    /// And how many bytes of keys and values were given.
    gate: Mutex<(Gate, usize)>,
    changed: Condvar,
}

impl Gated {
    /// Several of them outlast the time from deciding to wait for a block to registering the wait.
    const PACE: Duration = Duration::from_secs(2);
    /// A test that would hang fails instead.
    const PATIENCE: Duration = Duration::from_secs(600);

    fn set(&self, gate: Gate) {
        self.gate.lock().unwrap().0 = gate;
        self.changed.notify_all();
    }

    fn given(&self) -> usize {
        self.gate.lock().unwrap().1
    }

    /// Of keys and values.
    fn bytes(&self) -> usize {
        self.image.tensors.iter().filter(|t| Gated::counts(&t.name)).map(|t| t.data.len()).sum()
    }

    fn counts(name: &str) -> bool {
        name.starts_with("k.") || name.starts_with("v.")
    }

    /// Waits until `bytes` of `name` may be given.
    fn pass(&self, name: &str, bytes: usize) -> Result<(), RowsFault> {
        let mut slow = bytes > PIECE_BYTES / 16;
        // Values follow the keys of the same rows.
        let begun = name.starts_with("v.");
        let deadline = Instant::now() + Gated::PATIENCE;
        let mut gate = self.gate.lock().unwrap();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RowsFault::new(format!("nobody answered: {gate:?}")));
            }
            gate = match gate.0 {
                Gate::Ajar if slow => {
                    drop(gate);
                    std::thread::sleep(Gated::PACE);
                    slow = false;
                    self.gate.lock().unwrap()
                }
                Gate::Ajar if begun || gate.1 < self.bytes() / 2 => break,
                Gate::Open => break,
                Gate::Shut | Gate::Ajar => self.changed.wait_timeout(gate, left).unwrap().0,
            };
        }
        gate.1 += bytes;
        Ok(())
    }
}

impl RowSource for Gated {
    fn start(&self) -> u64 {
        self.image.start()
    }
    fn rows(&self) -> u64 {
        self.image.rows()
    }
    fn array(&self, name: &str) -> Option<(Dtype, Vec<usize>)> {
        self.image.array(name)
    }
    fn fill(&self, name: &str, at: usize, into: &mut [u8]) -> Result<(), RowsFault> {
        if Gated::counts(name) {
            self.pass(name, into.len())?;
        }
        self.image.fill(name, at, into)
    }
    fn load(&self, name: &str) -> Result<ImageTensor, RowsFault> {
        self.image.load(name)
    }
}

#[test]
fn rows_on_their_way_arrive_before_they_leave_the_device() {
    const ROWS: usize = 20_000;
    let (spec, mut b) = (sparse(), device());
    let mut model = Checkpoint::open("synthetic:tiny").unwrap().spec().clone();
    model.sparse = spec.clone();
    let mut cache = b.cache(&spec, 1 << 15).unwrap();
    b.reserve(&mut cache, ROWS).unwrap();
    let whole = image(&spec, 0, ROWS);
    // An unreadable file: no rows arrive, and a reader of that row gets the error.
    let bad = [Arc::new(Bad(whole.clone())) as Arc<dyn RowSource>];
    b.restore_rows(&mut [(3, &mut cache)], &bad).unwrap();
    let refused = b.page_out(&model, 1 << 15, &mut [vec![&mut cache]]).unwrap_err();
    assert!(matches!(refused, BackendError::Unsupported(_)), "{refused}");
    assert_eq!((b.memory().host, b.memory().pool), (0, 0));
    let error = b.sync_rows(ROWS).unwrap_err();
    assert!(matches!(error, BackendError::Rows(_)), "{error}");
    // A late file.
    let disk = Arc::new(Gated { image: whole, gate: Mutex::new((Gate::Shut, 0)), changed: Condvar::new() });
    b.restore_rows(&mut [(3, &mut cache)], &[Arc::clone(&disk) as Arc<dyn RowSource>]).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            disk.set(Gate::Open);
        });
        b.page_out(&model, 1 << 15, &mut [vec![&mut cache]]).unwrap().unwrap();
    });
    assert!(b.memory().host > 0 && b.rows_are_there(&cache));
    let rows = b.read_rows(&cache, 0..ROWS).unwrap();
    for (here, there) in rows.iter().zip(&disk.image.tensors) {
        assert!(here.data.to_vec() == there.data.to_vec(), "{}", there.name);
    }
}

#[test]
fn an_answer_waits_for_the_rows_it_chose_and_not_for_the_rest() {
    // Two threads that read, on whatever machine: with one for each piece all pieces would be in somebody's hands at once.
    let readers = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    readers.install(|| assert_eq!(answer_during_restore(device()), answer_during_restore(paged(Guards::Off))));
}

fn answer_during_restore(mut b: Cuda) -> Vec<f32> {
    const ROWS: usize = 60_000;
    let spec = sparse();
    let mut cache = b.cache(&spec, 1 << 17).unwrap();
    b.reserve(&mut cache, ROWS + 1).unwrap();
    let mut sel = b.selection(&spec, 1 << 17).unwrap();
    let mut x = b.buf(spec.projection_width(), BufKind::Activation).unwrap();
    let mut o = b.buf(spec.heads * spec.head_dim, BufKind::Wide).unwrap();
    let values: Vec<f32> = (0..spec.projection_width()).map(|i| (i % 17) as f32 / 16.0 - 0.5).collect();
    b.write(&mut x, &values).unwrap();
    let mut image = image(&spec, 0, ROWS);
    for tensor in &mut image.tensors {
        // Small numbers: any bits would hold infinities.
        let small = |b: &u8| half::bf16::from_f32(f32::from(*b) / 256.0 - 0.5).to_le_bytes();
        let data: Vec<u8> = tensor.data.iter().step_by(2).flat_map(small).collect();
        tensor.data = data.into();
    }
    let gate = Mutex::new((Gate::Shut, 0));
    let disk = Arc::new(Gated { image, gate, changed: Condvar::new() });
    let feeds = [Arc::clone(&disk) as Arc<dyn RowSource>];
    let pass = Pass::Verify { rows: 1 };
    let mut outputs = Vec::new();
    for complete in [false, true] {
        b.restore_rows(&mut [(3, &mut cache)], &feeds).unwrap();
        if complete {
            disk.set(Gate::Open);
            b.sync_rows(ROWS).unwrap();
        } else {
            // The row after them is compressed together with the last ones.
            disk.set(Gate::Ajar);
            b.read_rows(&cache, ROWS - 4 * spec.kernel..ROWS).unwrap();
            disk.set(Gate::Shut);
        }
        b.seek(ROWS).unwrap();
        b.set_tokens(&[1]).unwrap();
        let mut step = |b: &mut Cuda| {
            b.step(StepKey::Verify(1), &mut |b| {
                b.append_kv(&mut [&mut cache], &x, &spec, pass)?;
                b.select_blocks(&mut sel, &x, &[&cache], &spec, pass)?;
                if !complete {
                    disk.set(Gate::Ajar);
                }
                b.attend(&mut o, &x, &mut sel, &[&cache], &spec, pass)
            })
            .unwrap();
            b.read(&o, 1).unwrap()
        };
        outputs.push(step(&mut b));
        let (given, all) = (disk.given(), disk.bytes());
        assert!(if complete { given == all } else { given < all / 4 * 3 }, "{given} of {all} bytes");
        // What a CUDA graph names must not change: none is made while rows are in flight.
        assert_eq!(b.graphs(), 0);
        if complete {
            outputs.extend((0..3).map(|_| step(&mut b)));
            assert_eq!(b.graphs(), 1);
        }
        // What is still in flight is not wanted any more.
        disk.set(Gate::Open);
        b.sync_rows(0).unwrap();
        *disk.gate.lock().unwrap() = (Gate::Shut, 0);
    }
    assert!(outputs[0].iter().all(|v| v.is_finite()));
    assert!(outputs.iter().all(|o| *o == outputs[0]));
    // A waiting pass can be stopped.
    b.restore_rows(&mut [(3, &mut cache)], &feeds).unwrap();
    let cancel = Cancel::default();
    cancel.cancel();
    b.stop_on(Some(&cancel));
    let stopped = b.read_rows(&cache, 0..ROWS);
    assert!(matches!(stopped, Err(BackendError::Stopped)));
    assert!(b.rows_in_flight());
    assert_eq!(disk.given(), 0);
    // The stop does not affect later reads.
    b.stop_on(None);
    disk.set(Gate::Open);
    assert!(b.read_rows(&cache, 0..ROWS).is_ok());
    b.sync_rows(0).unwrap();
    *disk.gate.lock().unwrap() = (Gate::Shut, 0);
    b.restore_rows(&mut [(3, &mut cache)], &feeds).unwrap();
    // Dropping a cache drops its rows, in flight or not: it waits for rows in use.
    disk.set(Gate::Ajar);
    drop(cache);
    assert!(!b.rows_in_flight());
    outputs.swap_remove(0)
}
