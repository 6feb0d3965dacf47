//! Numbers as text, each formatted here and nowhere else on a page.

/// What stands where there is no number.
pub const NONE: &str = "\u{2013}";

/// `digits` significant digits, without an exponent: `16.12`, `0.01230`, `39513`.
pub fn sig(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return NONE.to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = |v: f64| v.abs().log10().floor() as i64;
    let decimals = |v: f64| (digits as i64 - 1 - magnitude(v)).clamp(0, 15) as usize;
    let text = format!("{value:.*}", decimals(value));
    // 9.996 has three digits as 10.0, not as 10.00.
    match text.parse::<f64>() {
        Ok(rounded) if rounded != 0.0 && magnitude(rounded) > magnitude(value) => {
            format!("{value:.*}", decimals(rounded))
        }
        _ => text,
    }
}

/// `decimals` digits after the point.
pub fn fixed(value: f64, decimals: usize) -> String {
    if value.is_finite() { unsigned_zero(format!("{value:.decimals$}")) } else { NONE.to_owned() }
}

/// A share of 1 in percent, one digit after the point.
pub fn percent(share: f64) -> String {
    fixed(100.0 * share, 1)
}

/// Nanoseconds in microseconds, four significant digits.
pub fn us(ns: f64) -> String {
    sig(ns / 1e3, 4)
}

/// A ratio to the default: `1.617`.
pub fn ratio(value: f64) -> String {
    fixed(value, 3)
}

/// `1.617 [1.611, 1.626]`: an estimate and its bounds.
pub fn bounds(mid: f64, lo: f64, hi: f64) -> String {
    format!("{} [{}, {}]", ratio(mid), ratio(lo), ratio(hi))
}

/// The label of an axis: `step` says how fine; thousands apart from 10000 on.
pub fn tick(value: f64, step: f64) -> String {
    let decimals = (-step.abs().log10().floor()).clamp(0.0, 9.0) as usize;
    let text = unsigned_zero(format!("{value:.decimals$}"));
    if value.abs() < 1e4 || decimals > 0 { text } else { thousands(&text) }
}

/// `2000` as `2,000`, for pictures and prose; tables keep plain digits.
pub fn thousands(whole: &str) -> String {
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |rest| ("-", rest));
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    format!("{sign}{out}")
}

/// Milliseconds since 1970 as `2026-11-30 06:12:34 UTC`; the civil date by Hinnant's days-from-civil, turned round.
pub fn date(ms: u64) -> String {
    let (days, seconds) = ((ms / 86_400_000) as i64, ms / 1000 % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02} UTC")
}

fn unsigned_zero(text: String) -> String {
    match text.strip_prefix('-') {
        Some(rest) if rest.chars().all(|c| c == '0' || c == '.') => rest.to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_significant_and_no_zero_is_negative() {
        let cases = [(16.12388, "16.12"), (0.0123, "0.01230"), (39512.9, "39513"), (9.9996, "10.00"), (0.0, "0")];
        for (value, want) in cases {
            assert_eq!(sig(value, 4), want);
        }
        assert_eq!(sig(f64::NAN, 4), NONE);
        assert_eq!((fixed(-0.0001, 2), fixed(-0.126, 2)), ("0.00".to_owned(), "-0.13".to_owned()));
        assert_eq!((tick(20000.0, 5000.0), tick(0.05, 0.05)), ("20,000".to_owned(), "0.05".to_owned()));
        assert_eq!((thousands("200669"), thousands("-1000")), ("200,669".to_owned(), "-1,000".to_owned()));
    }

    #[test]
    fn dates_are_civil() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_709_251_199_000), "2024-02-29 23:59:59 UTC");
        assert_eq!(date(4_107_542_400_000), "2100-03-01 00:00:00 UTC");
    }
}
