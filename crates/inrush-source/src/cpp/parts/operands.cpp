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
