// Rows of a tile of a product. Its columns are two vectors, which GCC and Clang keep in registers.
constexpr i64 TILE_M = 6;

template <class T>
struct Lanes;
template <>
struct Lanes<float> {
    typedef float vector __attribute__((vector_size(VECTOR_BYTES)));
    typedef float loose __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
    static constexpr i64 WIDTH = VECTOR_BYTES / 4, TILE_N = 2 * WIDTH;
};
template <>
struct Lanes<double> {
    typedef double vector __attribute__((vector_size(VECTOR_BYTES)));
    typedef double loose __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
    static constexpr i64 WIDTH = VECTOR_BYTES / 8, TILE_N = 2 * WIDTH;
};

// Adds the product of packed operands to a tile of sums.
template <class T>
inline void multiply(const T *a, const T *b, i64 terms, T *sums, i64 row) {
    using Loose = typename Lanes<T>::loose;
    constexpr i64 WIDTH = Lanes<T>::WIDTH;
    typename Lanes<T>::vector sum[TILE_M][2];
    UNROLL
    for (i64 m = 0; m < TILE_M; m++) {
        sum[m][0] = *reinterpret_cast<const Loose *>(sums + m * row);
        sum[m][1] = *reinterpret_cast<const Loose *>(sums + m * row + WIDTH);
    }
    for (i64 k = 0; k < terms; k++, a += TILE_M, b += 2 * WIDTH) {
        const typename Lanes<T>::vector left = *reinterpret_cast<const Loose *>(b), right = *reinterpret_cast<const Loose *>(b + WIDTH);
        UNROLL
        for (i64 m = 0; m < TILE_M; m++) {
            sum[m][0] += a[m] * left;
            sum[m][1] += a[m] * right;
        }
    }
    UNROLL
    for (i64 m = 0; m < TILE_M; m++) {
        *reinterpret_cast<Loose *>(sums + m * row) = sum[m][0];
        *reinterpret_cast<Loose *>(sums + m * row + WIDTH) = sum[m][1];
    }
}
