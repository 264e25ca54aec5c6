//! Rows of a SQLite file read page by page, without SQLite, which stops at the first damaged page of a table.
//! Format: <https://sqlite.org/fileformat2.html>, sections 1.5 to 2.1.

use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rusqlite::types::ValueRef;

/// The size of a page of our databases.
const PAGE: usize = 4096;
/// The schema and, before it, the header of the file.
pub(super) const FIRST: u32 = 1;
const HEADER: usize = 100;

pub(super) struct Pages {
    file: File,
    count: u32,
}

/// A page of the tree of a table or of an index.
pub(super) struct Page {
    pub is_table: bool,
    pub rows: Vec<Record>,
    pub children: Vec<u32>,
    /// Rows on it that cannot be read.
    pub unreadable: u64,
}

#[derive(Default)]
pub(super) struct Record {
    /// The first column of a table with row ids. The record has NULL in its place.
    pub rowid: Option<i64>,
    bytes: Vec<u8>,
}

impl Record {
    pub fn values(&self) -> Option<Vec<ValueRef<'_>>> {
        let (header, read) = varint(&self.bytes)?;
        let (header, mut body) = self.bytes.split_at_checked(usize::try_from(header).ok()?)?;
        let mut types = header.get(read..)?;
        let mut values = Vec::new();
        while !types.is_empty() {
            let (code, read) = varint(types)?;
            types = types.get(read..)?;
            let length = match code {
                0 | 8 | 9 => 0,
                1..=4 => code,
                5 => 6,
                6 | 7 => 8,
                10 | 11 => return None,
                text_or_blob => (text_or_blob - 12) / 2,
            };
            let (bytes, rest) = body.split_at_checked(usize::try_from(length).ok()?)?;
            body = rest;
            values.push(match code {
                0 => ValueRef::Null,
                1..=6 => ValueRef::Integer(integer(bytes)),
                7 => ValueRef::Real(f64::from_bits(integer(bytes).cast_unsigned())),
                8 | 9 => ValueRef::Integer(i64::from(code == 9)),
                blob if blob % 2 == 0 => ValueRef::Blob(bytes),
                _ => ValueRef::Text(bytes),
            });
        }
        Some(values)
    }
}

impl Pages {
    pub fn open(path: &Path) -> io::Result<Pages> {
        let file = File::open(path)?;
        let count = u32::try_from(file.metadata()?.len() / PAGE as u64).map_err(io::Error::other)?;
        Ok(Pages { file, count })
    }

    pub fn numbers(&self) -> RangeInclusive<u32> {
        FIRST..=self.count
    }

    /// `None` for a page that belongs to no tree. `in_table`: a page whose kind is damaged may be a table's leaf.
    pub fn read(&self, number: u32, in_table: bool) -> io::Result<Option<Page>> {
        let Some(bytes) = self.bytes(number)? else { return Ok(None) };
        let start = if number == FIRST { HEADER } else { 0 };
        let head = bytes.get(start..).unwrap_or_default();
        let (is_leaf, is_table) = match head.first() {
            Some(0x0d) => (true, true),
            Some(0x0a) => (true, false),
            Some(0x05) => (false, true),
            Some(0x02) => (false, false),
            // One wrong bit; other kinds of pages hold text of users.
            Some(kind) if in_table && (kind ^ 0x0d).count_ones() == 1 && has_cells(head) => (true, true),
            _ => return Ok(None),
        };
        let mut page = Page { is_table, rows: Vec::new(), children: Vec::new(), unreadable: 0 };
        let cells = head.get(3..5).map_or(0, number_of);
        let places = head.get(if is_leaf { 8 } else { 12 }..).unwrap_or_default();
        for place in places.chunks_exact(2).take(cells as usize) {
            let mut cell = bytes.get(number_of(place) as usize..).unwrap_or_default();
            if !is_leaf && let Some((child, rest)) = cell.split_at_checked(4) {
                page.children.push(number_of(child));
                cell = rest;
            }
            if is_leaf || !is_table {
                match self.record(cell, is_table)? {
                    Some(record) => page.rows.push(record),
                    None => page.unreadable += 1,
                }
            }
        }
        if !is_leaf {
            page.children.extend(head.get(8..12).map(number_of));
        }
        Ok(Some(page))
    }

    fn bytes(&self, number: u32) -> io::Result<Option<Vec<u8>>> {
        if !self.numbers().contains(&number) {
            return Ok(None);
        }
        let mut bytes = vec![0; PAGE];
        self.file.read_exact_at(&mut bytes, u64::from(number - 1) * PAGE as u64)?;
        Ok(Some(bytes))
    }

    /// Reads a cell: length of its record, row id in a table, the record's beginning; a chain of pages holds the rest.
    fn record(&self, mut cell: &[u8], is_table: bool) -> io::Result<Option<Record>> {
        let mut next_number = || {
            let (number, read) = varint(cell)?;
            cell = cell.get(read..)?;
            Some(number)
        };
        let Some(length) = next_number() else { return Ok(None) };
        let rowid = if is_table { next_number().map(u64::cast_signed) } else { None };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let here = on_page(length, is_table);
        let Some((bytes, mut rest)) = cell.split_at_checked(here).filter(|_| length / PAGE <= self.count as usize)
        else {
            return Ok(None);
        };
        let mut record = Record { rowid, bytes: bytes.to_vec() };
        let mut page;
        while record.bytes.len() < length {
            let next = rest.get(..4).map_or(0, number_of);
            let Some(bytes) = self.bytes(next)? else { return Ok(None) };
            page = bytes;
            let more = (length - record.bytes.len()).min(PAGE - 4);
            record.bytes.extend(page.get(4..4 + more).unwrap_or_default());
            rest = &page;
        }
        Ok(Some(record))
    }
}

/// Whether this is the head of a leaf with places of cells, and then the cells.
fn has_cells(head: &[u8]) -> bool {
    let [cells, begin] = [3..5, 5..7].map(|at| head.get(at).map_or(0, number_of) as usize);
    cells > 0 && (8 + 2 * cells..PAGE).contains(&begin)
}

/// Bytes of a record of this length that are in its cell.
fn on_page(length: usize, is_table: bool) -> usize {
    const LEAST: usize = (PAGE - 12) * 32 / 255 - 23;
    let most = if is_table { PAGE - 35 } else { (PAGE - 12) * 64 / 255 - 23 };
    if length <= most {
        return length;
    }
    let filling = LEAST + (length - LEAST) % (PAGE - 4);
    if filling <= most { filling } else { LEAST }
}

/// Big-endian.
fn number_of(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Big-endian, with a sign.
fn integer(bytes: &[u8]) -> i64 {
    let sign = if bytes.first().is_some_and(|byte| *byte >= 0x80) { -1 } else { 0 };
    bytes.iter().fold(sign, |number, byte| number << 8 | i64::from(*byte))
}

/// A number of up to nine bytes, and its length.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0;
    for (i, byte) in bytes.iter().take(8).enumerate() {
        number = number << 7 | u64::from(byte & 0x7f);
        if *byte < 0x80 {
            return Some((number, i + 1));
        }
    }
    bytes.get(8).map(|last| (number << 8 | u64::from(*last), 9))
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;
    use rusqlite::types::Value;

    use super::*;

    #[test]
    fn every_value_is_read_as_sqlite_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        let db = Connection::open(&path).unwrap();
        db.execute_batch("CREATE TABLE t(a, b); CREATE TABLE k(a, b, PRIMARY KEY(a, b)) WITHOUT ROWID").unwrap();
        let integers = [0, 1, -1, 127, -128, 32_768, -8_388_609, 1 << 31, -(1 << 47), i64::MAX, i64::MIN];
        let mut values: Vec<Value> = integers.map(Value::Integer).into();
        values.extend([Value::Null, Value::Real(-0.1)]);
        for length in [0, 1, 489, 1_002, 1_003, 4_061, 4_062, 8_150, 100_000] {
            values.extend([Value::Text("ä".repeat(length / 2)), Value::Blob(vec![7; length])]);
        }
        for (n, value) in values.iter().enumerate() {
            db.execute("INSERT INTO t(rowid, a, b) VALUES (?1, ?2, ?1)", (n as i64 * 1_000_003 - 5, value)).unwrap();
            db.execute("INSERT OR IGNORE INTO k VALUES (?1, ?2)", (n as i64, value)).unwrap();
        }
        let pages = Pages::open(&path).unwrap();
        let (mut tables, mut keys) = (Vec::new(), Vec::new());
        for page in pages.numbers().skip(1).filter_map(|number| pages.read(number, false).unwrap()) {
            assert_eq!(page.unreadable, 0);
            for record in page.rows {
                let found: Vec<Value> = record.values().unwrap().into_iter().map(|v| v.try_into().unwrap()).collect();
                match record.rowid {
                    Some(rowid) => tables.push((rowid, found)),
                    None => keys.push(found),
                }
            }
        }
        tables.sort_by_key(|(rowid, _)| *rowid);
        assert_eq!(tables.len(), values.len());
        for (n, ((rowid, found), value)) in tables.iter().zip(&values).enumerate() {
            assert_eq!((*rowid, &found[0], &found[1]), (n as i64 * 1_000_003 - 5, value, &Value::Integer(*rowid)));
        }
        let stored = db.query_row("SELECT count(*) FROM k", [], |r| r.get::<_, usize>(0)).unwrap();
        assert_eq!(keys.len(), stored);
        assert!(keys.iter().all(|found| match &found[0] {
            Value::Integer(n) => found[1] == values[*n as usize],
            other => panic!("{other:?}"),
        }));
    }
}
