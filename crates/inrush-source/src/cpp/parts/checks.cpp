inline std::string shown(const Value &value) {
    if (const Tensor *t = std::get_if<Tensor>(&value)) return std::string("a ") + t->dtype.name + " tensor of sizes " + text(t->sizes);
    if (const i64 *n = std::get_if<i64>(&value)) return "the integer " + std::to_string(*n);
    if (const double *n = std::get_if<double>(&value)) return "the number " + std::to_string(*n);
    if (const bool *b = std::get_if<bool>(&value)) return *b ? "the number true" : "the number false";
    return "None";
}

// Returns the tensor that is an input, after checks of its dtype and of the number of its dimensions.
inline const Tensor &expect_tensor(const char *name, const Value &value, const DType &dtype, std::size_t rank) {
    const std::string input = std::string("input `") + name + "` must ";
    const Tensor *t = std::get_if<Tensor>(&value);
    if (t == nullptr) throw InputError(input + "be a tensor, got " + shown(value));
    if (!(t->dtype == dtype)) throw InputError(input + "be " + dtype.name + ", got " + t->dtype.name);
    if (t->sizes.size() != rank || t->strides.size() != rank)
        throw InputError(input + "have " + std::to_string(rank) + " dimensions, got sizes " + text(t->sizes));
    for (const Size &n : t->sizes)
        if (n.value < 0) throw InputError(input + "have sizes, got " + text(t->sizes));
    return *t;
}

inline Size expect_int(const char *name, const Value &value) {
    const i64 *n = std::get_if<i64>(&value);
    if (n == nullptr) throw InputError(std::string("input `") + name + "` must be an integer, got " + shown(value));
    return *n;
}

// Checks an input that the model was exported with as a constant.
template <class T>
inline void expect_constant(const char *name, const Value &value, T wanted, const char *spelled) {
    const T *given = std::get_if<T>(&value);
    if (!std::holds_alternative<std::monostate>(value) && (given == nullptr || *given != wanted))
        throw InputError(std::string("input `") + name + "` was exported as the constant " + spelled + "; the model is valid for no other value");
}

// Checks an integer that must equal a size.
inline void expect_value(const char *name, Size given, Size wanted, const char *formula) {
    if (given != wanted) throw InputError(std::string("input `") + name + "` must be " + formula + ", got " + std::to_string(given.value));
}

// Returns the number of which a size is `factor` times plus `offset`.
inline Size solve(const char *name, const Tensor &t, std::size_t dim, i64 factor, i64 offset, const char *symbol) {
    const Size size = t.sizes[dim], rest = size - offset;
    if (factor == 0 || mod(rest, factor).value != 0)
        throw InputError(std::string("input `") + name + "`: size " + std::to_string(size.value) + " of dimension " + std::to_string(dim) + " must be " +
                         std::to_string(factor) + "*" + symbol + " + " + std::to_string(offset));
    return floordiv(rest, factor);
}

// Checks the range of a symbol, which was read at `place`.
inline void within(const char *place, const char *symbol, Size value, i64 lower, i64 upper) {
    if (value.value >= lower && value.value <= upper) return;
    const std::string last = upper == std::numeric_limits<i64>::max() ? "any" : std::to_string(upper);
    throw InputError(std::string(place) + ": `" + symbol + "` is " + std::to_string(value.value) + ", outside the range " + std::to_string(lower) + "..=" + last +
                     " that the model was exported for");
}

inline void guard(bool holds, const char *why, Size left, Size right) {
    if (!holds) throw InputError(std::string(why) + " does not hold: the sides are " + std::to_string(left.value) + " and " + std::to_string(right.value));
}

// Checks the sizes of an input. `formulas` are the wanted sizes over the symbols, `known` tells the values of these.
template <class Known>
inline void expect_sizes(const char *name, const Tensor &t, const Sizes &wanted, const std::vector<const char *> &formulas, const Known &known) {
    for (std::size_t d = 0; d < wanted.size(); d++) {
        if (wanted[d].value == t.sizes[d].value) continue;
        const std::string size = std::to_string(wanted[d].value);
        const std::string because = size == formulas[d] ? "" : std::string(" (") + formulas[d] + " with " + known() + ")";
        throw InputError(std::string("input `") + name + "`: dimension " + std::to_string(d) + " must be " + size + because + ", got " +
                         std::to_string(t.sizes[d].value));
    }
}

// What steps assume about an input's memory: nothing, its strides, or that it begins its storage too.
enum class Reads { elements, memory, storage };

// Returns an input with the strides that kernels read: the tensor itself or a copy.
inline Tensor laid_out(const char *name, const Tensor &t, const Sizes &strides, Reads reads = Reads::elements) {
    const bool same = lies_as(t, strides);
    const std::string input = std::string("input `") + name + "` must ";
    if (reads != Reads::elements && !same)
        throw InputError(input + "have strides " + text(strides) + ", got " + text(t.strides) + ": the program counts positions in its memory (`as_strided`)");
    if (reads == Reads::storage && t.memory && t.data != t.memory.get())
        throw InputError(input + "begin its storage, its offset is " + std::to_string((t.data - t.memory.get()) / t.dtype.bytes) +
                         ": the program counts positions in the storage (`as_strided`)");
    if (same) return t;
    for (std::size_t d = 0; d < strides.size(); d++)
        if (strides[d].value == 0 && t.sizes[d].value > 1 && t.strides[d].value != 0)
            throw InputError(input + "have strides " + text(strides) + ", got " + text(t.strides) + ": the program reads one element of dimension " +
                             std::to_string(d) + " for all");
    const Tensor out = empty_tensor(t.dtype, t.sizes, strides);
    copy(out, t);
    return out;
}
