//! Numbers and paragraphs as a person reads them.

/// Lines of at most `width` characters; a longer word is a line of its own.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    wrapped_from(text, width, width)
}

/// As [`wrapped`], with another width of the first line.
pub fn wrapped_from(text: &str, first: usize, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let width = if lines.len() > 1 { width } else { first };
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// As [`wrapped`], later lines moved in.
pub fn wrapped_at(text: &str, width: usize, indent: usize) -> impl Iterator<Item = String> {
    let lines = wrapped_from(text, width, width - indent)
        .into_iter()
        .enumerate();
    lines.map(move |(index, line)| match index {
        0 => line,
        _ => format!("{:indent$}{line}", ""),
    })
}

/// A text from a file, that may hold anything, in one line.
pub fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

pub fn plural(count: u128, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    match what.split_once(' ') {
        Some((first, rest)) => format!("{} {first}{plural} {rest}", number(count)),
        None => format!("{} {what}{plural}", number(count)),
    }
}

/// With a narrow gap between thousands.
pub fn number(value: u128) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && digits.len() > 4 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub fn size(bytes: u64) -> String {
    let bytes_f = bytes as f64;
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", significant(bytes_f / 1024.0)),
        0x10_0000..0x4000_0000 => format!("{} MiB", significant(bytes_f / f64::from(1 << 20))),
        _ => format!("{} GiB", significant(bytes_f / f64::from(1 << 30))),
    }
}

/// Three digits, or all of a larger number; none after the point that say nothing.
pub fn significant(value: f64) -> String {
    let digits = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

pub fn ratio(value: f64) -> String {
    match value {
        v if v >= 10.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

pub fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{} µs", significant(1e6 * s)),
        s if s < 1.0 => format!("{} ms", significant(1e3 * s)),
        s => format!("{} s", significant(s)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_filled_and_no_word_is_lost() {
        assert_eq!(wrapped("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrapped("abcdef g", 4), ["abcdef", "g"]);
        assert_eq!(
            wrapped_from("aa bb cc dd ee", 2, 5),
            ["aa", "bb cc", "dd ee"]
        );
        let hanging: Vec<_> = wrapped_at("aa bb cc", 5, 2).collect();
        assert_eq!(hanging, ["aa bb", "  cc"]);
    }

    #[test]
    fn numbers_have_the_digits_that_say_something() {
        assert_eq!(
            [1023, 1536, 5 << 20].map(size),
            ["1023 B", "1.5 KiB", "5 MiB"]
        );
        assert_eq!(
            [1000, 10_000, 1_234_567].map(number),
            ["1000", "10,000", "1,234,567"]
        );
        assert_eq!([2.5e-5, 0.0125, 3.0].map(time), ["25 µs", "12.5 ms", "3 s"]);
        assert_eq!(
            (plural(1, "step"), plural(2, "kind of layer")),
            ("1 step".into(), "2 kinds of layer".into())
        );
        assert_eq!(clean("a\n\u{1b}[2J"), "a  [2J");
    }
}
