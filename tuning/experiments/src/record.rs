//! The folder of a record: `benches/record/<machine>/<date>`.

use std::path::{Path, PathBuf};

/// The folder of this machine and day. `RECORD_FOLDER` overrides it.
///
/// # Errors
/// No row of `benches/record/machines.csv` has this processor's vendor, family and model.
pub fn folder() -> Result<PathBuf, Box<dyn std::error::Error>> {
    if let Some(folder) = std::env::var_os("RECORD_FOLDER") {
        return Ok(folder.into());
    }
    let record = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/record"));
    let kind = kind(
        &record.join("machines.csv"),
        &std::fs::read_to_string("/proc/cpuinfo")?,
    )?;
    let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    Ok(record.join(kind).join(today))
}

/// The machine kind of a processor, by the lines of `/proc/cpuinfo`.
fn kind(machines: &Path, cpuinfo: &str) -> Result<String, Box<dyn std::error::Error>> {
    let value = |key: &str| {
        let mut pairs = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        pairs.find_map(|(name, value)| (name.trim() == key).then(|| value.trim().to_string()))
    };
    let here = ["vendor_id", "cpu family", "model"].map(|key| value(key).unwrap_or_default());
    for row in csv::Reader::from_path(machines)?.records() {
        let row = row?;
        if row
            .iter()
            .skip(1)
            .take(here.len())
            .eq(here.iter().map(String::as_str))
        {
            return Ok(row[0].to_string());
        }
    }
    Err(
        format!("no machine kind for {here:?}: add it to machines.csv, or set RECORD_FOLDER")
            .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_found_by_vendor_family_and_model() {
        let machines = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../benches/record/machines.csv"
        );
        let info =
            "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t: any\n";
        assert_eq!(kind(Path::new(machines), info).unwrap(), "emerald-rapids");
        assert!(kind(Path::new(machines), "vendor_id: GenuineIntel\n").is_err());
    }
}
