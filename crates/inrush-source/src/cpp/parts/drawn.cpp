enum class Kind { tensor, integer, ignored };

// An input of the call.
struct Input {
    const char *name;
    Kind kind;
};

// Returns a size that is given by name, or a default.
inline Size size_of(const std::map<std::string, i64> &given, const char *name, i64 otherwise) {
    const auto found = given.find(name);
    return found == given.end() ? otherwise : found->second;
}

// Checks that given sizes are among these.
inline void expect_names(const std::map<std::string, i64> &given, const std::vector<std::string> &known) {
    std::string all;
    for (const std::string &name : known) all += (all.empty() ? "" : ", ") + name;
    for (const auto &[name, size] : given)
        if (std::find(known.begin(), known.end(), name) == known.end())
            throw InputError("the model has no size `" + name + "`; its sizes are: " + (all.empty() ? "none" : all));
}

// Returns a tensor of drawn elements: floats of -2 to 2, integers and truth values of 0 and 1, since they may be indices.
inline Tensor drawn(const DType &dtype, const Sizes &sizes, const Sizes &strides) {
    static std::mt19937_64 random;
    const Tensor out = empty_tensor(dtype, sizes, strides);
    const i64 bytes = extent(dtype, sizes, strides).value;
    std::memset(out.data, 0, static_cast<std::size_t>(bytes));
    for (i64 at = 0; at < bytes; at += dtype.bytes) {
        if (!dtype.is_float) {
            out.data[at] = static_cast<char>(random() & 1);
            continue;
        }
        // The last two bytes of a float, as drawn: sign, exponent and the first bits of the fraction.
        const float number = std::ldexp(static_cast<float>(random() >> 40), -22) - 2;
        const double wide = number;
        std::uint32_t bits;
        std::memcpy(&bits, &number, 4);
        if (dtype == dtypes::F32) std::memcpy(out.data + at, &number, 4);
        if (dtype == dtypes::F64) std::memcpy(out.data + at, &wide, 8);
        if (dtype == dtypes::BF16) std::memcpy(out.data + at, reinterpret_cast<char *>(&bits) + 2, 2);
        if (dtype == dtypes::F16) {
            const std::uint16_t half = static_cast<std::uint16_t>(15 << 10 | (random() & 0x83ff));
            std::memcpy(out.data + at, &half, 2);
        }
    }
    return out;
}
