//! The flags that say how tokens are drawn, the same for `run` and `chat`.

use clap::Args;
use planish_engine::generate::Settings;
use planish_kernels::cpu::sample::Params;

/// How tokens are drawn; the defaults take the likeliest token every time.
#[derive(Args)]
pub struct Sampling {
    /// Divides the logits before the draw; 0 takes the likeliest token every time
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = at_least_0)]
    temperature: f32,
    /// Draw among this many likeliest tokens; 0 is all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: u32,
    /// Draw among the likeliest tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = share)]
    top_p: f32,
    /// Leave out tokens below this share of the likeliest one's probability
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = share)]
    min_p: f32,
    /// Divides the positive logits of tokens among the last 64, and multiplies the negative ones; 1 is off
    #[arg(long, value_name = "R", default_value_t = 1.0, value_parser = above_0)]
    repeat_penalty: f32,
    /// Key of the random numbers: the same seed gives the same text
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Most tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
}

/// Tokens back to which a repetition counts.
const PENALTY_WINDOW: usize = 64;

impl Sampling {
    /// The settings of a generation.
    pub fn settings(&self) -> Settings {
        let sampling = Params {
            temperature: self.temperature,
            top_k: self.top_k as usize,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition: self.repeat_penalty,
            ..Params::default()
        };
        let penalty_window = if self.repeat_penalty == 1.0 { 0 } else { PENALTY_WINDOW };
        Settings { sampling, penalty_window, seed: self.seed, max_tokens: self.max_tokens as usize }
    }
}

fn number(text: &str, legal: impl Fn(f32) -> bool, what: &str) -> Result<f32, String> {
    text.parse().ok().filter(|v: &f32| v.is_finite() && legal(*v)).ok_or_else(|| format!("`{text}` is not {what}"))
}

fn at_least_0(text: &str) -> Result<f32, String> {
    number(text, |v| v >= 0.0, "a number of at least 0")
}

fn above_0(text: &str) -> Result<f32, String> {
    number(text, |v| v > 0.0, "a number above 0")
}

fn share(text: &str) -> Result<f32, String> {
    number(text, |v| (0.0..=1.0).contains(&v), "a number from 0 to 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_ranges() {
        assert_eq!((at_least_0("0"), above_0("0.5"), share("1")), (Ok(0.0), Ok(0.5), Ok(1.0)));
        for bad in ["nan", "inf", "-1", "x", ""] {
            assert!(at_least_0(bad).is_err() && above_0(bad).is_err() && share(bad).is_err(), "{bad}");
        }
        assert!(above_0("0").is_err() && share("1.01").is_err());
    }
}
