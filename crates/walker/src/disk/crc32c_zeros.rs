//! CRC-32C of zeros, which are most of the bytes that some checksums of structures cover. The walker and the build
//! share it, as they share the crate `crc32c`: both belong to no format.

/// The polynomial of CRC-32C, its bits reversed (RFC 3720, appendix B.4).
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// A linear function of a remainder: the value for each bit alone.
type BitValues = [u32; 32];

/// The functions by which 2^0, 2^1, 2^2 … zero bytes change the remainder before them.
static BEHIND_ZEROS: [BitValues; 64] = {
    let mut all = [[0; 32]; 64];
    let mut bit = 0;
    while bit < 32 {
        all[0][bit] = behind_zero_byte(1 << bit);
        bit += 1;
    }
    let mut power = 1;
    while power < 64 {
        // Twice as many zeros: the same function twice.
        let half = all[power - 1];
        let mut bit = 0;
        while bit < 32 {
            all[power][bit] = transformed(&half, half[bit]);
            bit += 1;
        }
        power += 1;
    }
    all
};

/// Returns the remainder behind a zero byte.
const fn behind_zero_byte(mut remainder: u32) -> u32 {
    let mut bits = 8;
    while bits > 0 {
        let subtracted = if remainder & 1 != 0 { POLYNOMIAL } else { 0 };
        remainder = remainder >> 1 ^ subtracted;
        bits -= 1;
    }
    remainder
}

/// Returns the value of a linear function.
const fn transformed(transform: &BitValues, remainder: u32) -> u32 {
    let mut sum = 0;
    let mut left = remainder;
    while left != 0 {
        sum ^= transform[left.trailing_zeros() as usize];
        left &= left - 1;
    }
    sum
}

/// Returns the CRC-32C of some bytes and `count` zeros behind them, where `checksum` is that of the bytes. The time
/// grows with the logarithm of the number of zeros.
pub fn append_zeros(checksum: u32, count: u64) -> u32 {
    // A checksum is the complement of the remainder so far.
    let mut remainder = !checksum;
    for (bit, behind) in BEHIND_ZEROS.iter().enumerate() {
        if count >> bit & 1 != 0 {
            remainder = transformed(behind, remainder);
        }
    }
    !remainder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_appended_without_reading_them() {
        let checksum = crc32c::crc32c(b"123456789");
        assert_eq!(checksum, 0xe306_9283);
        for count in [0, 1, 7, 4096, 100_003] {
            let long = crc32c::crc32c_append(checksum, &vec![0; count as usize]);
            assert_eq!(append_zeros(checksum, count), long, "{count} zeros");
        }
    }
}
