using i64 = long long;

// The inputs are at fault.
struct InputError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A check of a kernel failed: an index out of range, a division by zero.
struct CheckError : InputError {
    using InputError::InputError;
};

// The machine is at fault: no memory, a file that cannot be read.
struct MachineError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// An integer of checked arithmetic: sizes come from callers, so a value that wraps around is an error.
struct Size {
    i64 value;
    Size(i64 v) : value(v) {}
};

[[noreturn]] inline void overflow() { throw InputError("a size overflows or divides by zero for these inputs"); }

inline Size operator+(Size a, Size b) {
    i64 out;
    if (__builtin_add_overflow(a.value, b.value, &out)) overflow();
    return out;
}

inline Size operator-(Size a, Size b) {
    i64 out;
    if (__builtin_sub_overflow(a.value, b.value, &out)) overflow();
    return out;
}

inline Size operator*(Size a, Size b) {
    i64 out;
    if (__builtin_mul_overflow(a.value, b.value, &out)) overflow();
    return out;
}

// Divides toward minus infinity.
inline Size floordiv(Size a, Size b) {
    if (b.value == 0 || (b.value == -1 && a.value == std::numeric_limits<i64>::min())) overflow();
    const i64 quotient = a.value / b.value;
    return a.value % b.value != 0 && (a.value < 0) != (b.value < 0) ? quotient - 1 : quotient;
}

// Returns the remainder of `floordiv`, which has the sign of the divisor.
inline Size mod(Size a, Size b) { return a - floordiv(a, b) * b; }

inline Size smaller(Size a, Size b) { return a.value < b.value ? a : b; }

inline Size larger(Size a, Size b) { return a.value > b.value ? a : b; }

inline bool operator==(Size a, Size b) { return a.value == b.value; }

inline bool operator!=(Size a, Size b) { return a.value != b.value; }

inline bool operator<=(Size a, Size b) { return a.value <= b.value; }

inline bool operator<(Size a, Size b) { return a.value < b.value; }

using Sizes = std::vector<Size>;

inline std::string text(const Sizes &sizes) {
    std::string out;
    for (const Size &n : sizes) out += (out.empty() ? "" : ", ") + std::to_string(n.value);
    return "[" + out + "]";
}

// An element type: its name in PyTorch and in safetensors files, and its bytes.
struct DType {
    const char *name, *in_files;
    i64 bytes;
    bool is_float;
};

inline bool operator==(const DType &a, const DType &b) { return std::string(a.name) == b.name; }

namespace dtypes {
//DTYPES
}  // namespace dtypes

// Returns memory that begins at a multiple of 64 bytes.
inline std::shared_ptr<char> allocate(Size bytes) {
    constexpr std::align_val_t line{64};
    if (bytes.value < 0) throw InputError("a tensor would take " + std::to_string(bytes.value) + " bytes");
    char *data = static_cast<char *>(::operator new(static_cast<std::size_t>(bytes.value) + 1, line, std::nothrow));
    if (data == nullptr) throw MachineError("out of memory: " + std::to_string(bytes.value) + " bytes");
    return std::shared_ptr<char>(data, [](char *p) { ::operator delete(p, line); });
}

inline char *at(char *base, Size bytes) { return base + bytes.value; }

// A tensor: strides count elements, `data` is the element with coordinates zero. `memory` keeps the elements alive; it is empty
// where the caller does.
struct Tensor {
    DType dtype{};
    Sizes sizes, strides;
    char *data = nullptr;
    std::shared_ptr<char> memory;
//PLACE
};

// An input or an output: a tensor, an integer, a number, a truth value or nothing.
using Value = std::variant<std::monostate, Tensor, i64, double, bool>;
using Values = std::vector<Value>;

inline Size elements(const Sizes &sizes) {
    Size out = 1;
    for (const Size &n : sizes) out = out * n;
    return out;
}

// Returns the bytes from the first to the last element, both included.
inline Size extent(const DType &dtype, const Sizes &sizes, const Sizes &strides) {
    Size last = 0;
    for (std::size_t d = 0; d < sizes.size(); d++) {
        if (sizes[d].value == 0) return 0;
        last = last + (sizes[d] - 1) * strides[d];
    }
    return (last + 1) * dtype.bytes;
}

inline Sizes row_major(const Sizes &sizes) {
    Sizes strides(sizes.size(), 1);
    for (std::size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * larger(sizes[d], 1);
    return strides;
}

inline Tensor empty_tensor(const DType &dtype, const Sizes &sizes, const Sizes &strides) {
    const std::shared_ptr<char> memory = allocate(extent(dtype, sizes, strides));
    return {dtype, sizes, strides, memory.get(), memory};
}

// Copies elements to a tensor of equal sizes, from dimension `d` on. Elements of a dimension with stride zero share memory: the first
// stands for all.
inline void copy_from(std::size_t d, const Tensor &to, char *into, const Tensor &from, const char *out_of) {
    const i64 bytes = to.dtype.bytes;
    if (d == to.sizes.size()) {
        std::memcpy(into, out_of, static_cast<std::size_t>(bytes));
        return;
    }
    const i64 count = to.strides[d].value == 0 ? std::min<i64>(to.sizes[d].value, 1) : to.sizes[d].value;
    const i64 in_to = to.strides[d].value * bytes, in_from = from.strides[d].value * bytes;
    if (d + 1 == to.sizes.size() && in_to == bytes && in_from == bytes) {
        std::memcpy(into, out_of, static_cast<std::size_t>(count * bytes));
        return;
    }
    for (i64 k = 0; k < count; k++) copy_from(d + 1, to, into + k * in_to, from, out_of + k * in_from);
}

inline void copy(const Tensor &to, const Tensor &from) { copy_from(0, to, to.data, from, from.data); }

// Returns true if a tensor has these strides. Those of dimensions of one element and of tensors without elements do not matter.
inline bool lies_as(const Tensor &t, const Sizes &strides) {
    if (elements(t.sizes).value == 0) return true;
    for (std::size_t d = 0; d < strides.size(); d++)
        if (t.sizes[d].value > 1 && t.strides[d].value != strides[d].value) return false;
    return true;
}
