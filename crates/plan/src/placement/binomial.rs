//! How often one of several nodes reads a block: Binomial(E, 1/N) (paper 001 sec. 3.2).

/// Up to here factors are multiplied one by one; beyond, that would take longer than what it is for.
const EXACT: u32 = 1000;

/// ln n!, by Stirling's series where its error is below 10^-10.
fn ln_factorial(n: u32) -> f64 {
    let x = f64::from(n);
    match n {
        ..=20 => (2..=n).map(|i| f64::from(i).ln()).sum(),
        _ => x * x.ln() - x + 0.5 * (std::f64::consts::TAU * x).ln() + 1.0 / (12.0 * x) - 1.0 / (360.0 * x.powi(3)),
    }
}

/// P(X = k) for X ~ Binomial(n, p).
#[must_use]
pub fn binomial(n: u32, k: u32, p: f64) -> f64 {
    if k > n || p <= 0.0 || p >= 1.0 {
        let certain = if p <= 0.0 { 0 } else { n };
        return f64::from(u8::from(k == certain && k <= n));
    }
    let choose: f64 = match n {
        ..=EXACT => (1..=k).map(|i| (f64::from(n - k + i) / f64::from(i)).ln()).sum(),
        _ => ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k),
    };
    (choose + f64::from(k) * p.ln() + f64::from(n - k) * (1.0 - p).ln()).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_trials_are_reckoned_as_few_are() {
        let one_by_one = |n: u32| (2..=n).map(|i| f64::from(i).ln()).sum::<f64>();
        for n in [0, 1, 20, 21, 300, 5000] {
            assert!((ln_factorial(n) - one_by_one(n)).abs() < 1e-8, "{n}");
        }
        let all: f64 = (0..=2000).map(|k| binomial(2000, k, 0.25)).sum();
        assert!((all - 1.0).abs() < 1e-8, "{all}");
    }
}
