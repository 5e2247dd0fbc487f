// Elements of operands: what memory holds, and their values.
template <class T>
struct Plain {
    using Stored = T;
    template <class Sum>
    static Sum load(T x) {
        return static_cast<Sum>(x);
    }
};

struct Brain {
    using Stored = std::uint16_t;
    template <class Sum>
    static Sum load(std::uint16_t x) {
        const std::uint32_t bits = static_cast<std::uint32_t>(x) << 16;
        float out;
        std::memcpy(&out, &bits, sizeof out);
        return static_cast<Sum>(out);
    }
};

struct Half {
    using Stored = std::uint16_t;
    template <class Sum>
    static Sum load(std::uint16_t x) {
        const int exponent = x >> 10 & 31, fraction = x & 1023;
        const double size = exponent == 31 ? (fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity())
                            : exponent == 0 ? std::ldexp(fraction, -24)
                                            : std::ldexp(fraction + 1024, exponent - 25);
        return static_cast<Sum>(x >> 15 != 0 ? -size : size);
    }
};

// Codes of floats of eight bits that are no finite numbers: those with the largest exponent, as IEEE 754 has it; NaN alone, with all
// bits set; NaN in the place of minus zero.
enum class Special { exponent, ones, minus_zero };

template <int FRACTION_BITS, int BIAS, Special SPECIAL>
struct Eight {
    using Stored = std::uint8_t;
    template <class Sum>
    static Sum load(std::uint8_t x) {
        constexpr int one = 1 << FRACTION_BITS, last = 127 >> FRACTION_BITS;
        const int exponent = x >> FRACTION_BITS & last, fraction = x & (one - 1);
        double size = exponent == 0 ? std::ldexp(fraction, 1 - BIAS - FRACTION_BITS) : std::ldexp(fraction + one, exponent - BIAS - FRACTION_BITS);
        if (SPECIAL == Special::exponent && exponent == last && fraction == 0) size = std::numeric_limits<double>::infinity();
        const bool is_nan = SPECIAL == Special::exponent ? exponent == last && fraction != 0 : SPECIAL == Special::ones ? (x & 127) == 127 : x == 128;
        if (is_nan) size = std::numeric_limits<double>::quiet_NaN();
        return static_cast<Sum>(x >> 7 != 0 ? -size : size);
    }
};
