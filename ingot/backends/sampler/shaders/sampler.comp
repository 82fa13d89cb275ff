#version 460
#extension GL_ARM_tensors : require
#extension GL_EXT_shader_explicit_arithmetic_types : require

// grid_sample with torch's numbers, in float32. Macros say how tensors are stored (float, int8_t, int16_t):
// IMAGE_TYPE, GRID_TYPE, OUTPUT_TYPE. With IMAGE_IS_TEXTURE the image is a texture of four int8 channels, read as
// q / 127 (SNORM). One invocation makes all channels of one output pixel.

layout(local_size_x = 8, local_size_y = 8, local_size_z = 1) in;

const int BILINEAR = 0, NEAREST = 1, BICUBIC = 2;  // torch's numbers
const int ZEROS = 0, BORDER = 1, REFLECTION = 2;

layout(constant_id = 0) const int MODE = BILINEAR;
layout(constant_id = 1) const int PADDING = ZEROS;
layout(constant_id = 2) const int ALIGN_CORNERS = 0;
layout(constant_id = 3) const int BATCH = 1;
layout(constant_id = 4) const int CHANNELS = 4;
layout(constant_id = 5) const int HEIGHT = 1;  // of the image
layout(constant_id = 6) const int WIDTH = 1;
layout(constant_id = 7) const int OUTPUT_HEIGHT = 1;
layout(constant_id = 8) const int OUTPUT_WIDTH = 1;
layout(constant_id = 9) const int IMAGE_CHANNELS_LAST = 0;
layout(constant_id = 10) const int OUTPUT_CHANNELS_LAST = 0;
layout(constant_id = 11) const float IMAGE_SCALE = 1.0;
layout(constant_id = 12) const int IMAGE_ZERO = 0;
layout(constant_id = 13) const float GRID_SCALE = 1.0;
layout(constant_id = 14) const int GRID_ZERO = 0;
layout(constant_id = 15) const float OUTPUT_INVERSE = 1.0;  // 1 / scale: rounded once, on the host
layout(constant_id = 16) const int OUTPUT_ZERO = 0;
layout(constant_id = 17) const int OUTPUT_MIN = -128;
layout(constant_id = 18) const int OUTPUT_MAX = 127;

#ifdef IMAGE_IS_TEXTURE
layout(set = 0, binding = 0) uniform sampler2D image;
#else
layout(set = 0, binding = 0) uniform tensorARM<IMAGE_TYPE, 4> image;
#endif
layout(set = 0, binding = 1) uniform tensorARM<GRID_TYPE, 4> grid;
layout(set = 0, binding = 2) uniform tensorARM<OUTPUT_TYPE, 4> result;

// ---- integers and reals: the stored type chooses ----

float real(float value, int zero, float scale) { return value; }
float real(int8_t value, int zero, float scale) { return float(int(value) - zero) * scale; }
float real(int16_t value, int zero, float scale) { return float(int(value) - zero) * scale; }

int quantized(float value) {
    precise float steps = roundEven(value * OUTPUT_INVERSE) + float(OUTPUT_ZERO);
    return isnan(steps) ? OUTPUT_ZERO : int(clamp(steps, float(OUTPUT_MIN), float(OUTPUT_MAX)));
}

void store(float value, out float stored) { stored = value; }
void store(float value, out int8_t stored) { stored = int8_t(quantized(value)); }
void store(float value, out int16_t stored) { stored = int16_t(quantized(value)); }

// ---- memory: four channels at a time ----

uint[4] place(int lastly, int n, int c, int y, int x) {
    return lastly != 0 ? uint[](uint(n), uint(y), uint(x), uint(c)) : uint[](uint(n), uint(c), uint(y), uint(x));
}

#ifdef IMAGE_IS_TEXTURE
vec4 pixel(int n, int c, int y, int x) {
    return roundEven(texelFetch(image, ivec2(x, y), 0) * 127.0) * IMAGE_SCALE;  // rounded: the integers themselves
}
#else
vec4 pixel(int n, int c, int y, int x) {
    vec4 values = vec4(0.0);
    for (int i = 0; i < min(4, CHANNELS - c); ++i) {
        IMAGE_TYPE value;
        tensorReadARM(image, place(IMAGE_CHANNELS_LAST, n, c + i, y, x), value);
        values[i] = real(value, IMAGE_ZERO, IMAGE_SCALE);
    }
    return values;
}
#endif

vec4 fetch(int n, int c, float y, float x) {  // zero outside, and where a position is no number
    bool inside = x >= 0.0 && x <= float(WIDTH - 1) && y >= 0.0 && y <= float(HEIGHT - 1);
    return inside ? pixel(n, c, int(y), int(x)) : vec4(0.0);
}

void write(int n, int c, int y, int x, vec4 values) {
    for (int i = 0; i < min(4, CHANNELS - c); ++i) {
        OUTPUT_TYPE value;
        store(values[i], value);
        tensorWriteARM(result, place(OUTPUT_CHANNELS_LAST, n, c + i, y, x), value);
    }
}

// ---- one axis: from a coordinate of -1..1 to pixels and weights ----

float coordinate(int n, int y, int x, int axis) {
    GRID_TYPE value;
    tensorReadARM(grid, uint[](uint(n), uint(y), uint(x), uint(axis)), value);
    return real(value, GRID_ZERO, GRID_SCALE);
}

float position(float at, int size) {
    precise float aligned = (at + 1.0) * (float(size - 1) / 2.0);
    precise float edged = (at + 1.0) * (float(size) / 2.0) - 0.5;
    return ALIGN_CORNERS != 0 ? aligned : edged;
}

float reflected(float at, int size) {  // mirrors stand where -1 and 1 are
    float low = ALIGN_CORNERS != 0 ? 0.0 : -0.5;
    float period = float(2 * (ALIGN_CORNERS != 0 ? size - 1 : size));
    if (period == 0.0)
        return 0.0;
    precise float far = abs(at - low);
    precise float rest = far - trunc(far / period) * period;
    precise float near = min(rest, period - rest) + low;
    return near;
}

float padded(float at, int size) {
    if (PADDING == ZEROS)
        return at;
    if (PADDING == REFLECTION)
        at = reflected(at, size);
    return at > 0.0 ? min(at, float(size - 1)) : 0.0;  // what is no number becomes 0
}

const float CUBIC = -0.75;  // how sharp torch's bicubic kernel is

float cubic_near(float d) {  // up to one pixel away
    precise float weight = ((CUBIC + 2.0) * d - (CUBIC + 3.0)) * d * d + 1.0;
    return weight;
}

float cubic_far(float d) {  // from one to two pixels away
    precise float weight = ((CUBIC * d - 5.0 * CUBIC) * d + 8.0 * CUBIC) * d - 4.0 * CUBIC;
    return weight;
}

const int TAPS = MODE == NEAREST ? 1 : MODE == BILINEAR ? 2 : 4;

void taps(float at, int size, out float where[4], out vec4 weights) {
    at = MODE == BICUBIC ? at : padded(at, size);
    float first = MODE == NEAREST ? roundEven(at) : floor(at);
    precise float part = at - first;
    weights = MODE == NEAREST    ? vec4(1.0, 0.0, 0.0, 0.0)
              : MODE == BILINEAR ? vec4(1.0 - part, part, 0.0, 0.0)
                                 : vec4(cubic_far(part + 1.0), cubic_near(part), cubic_near(1.0 - part), cubic_far(2.0 - part));
    for (int i = 0; i < 4; ++i)
        where[i] = MODE == BICUBIC ? padded(first + float(i - 1), size) : first + float(i);
}

vec4 interpolated(int n, int c, float ys[4], vec4 down, float xs[4], vec4 across) {
    precise vec4 total = vec4(0.0);
    for (int j = 0; j < TAPS; ++j) {
        precise vec4 row = vec4(0.0);
        for (int i = 0; i < TAPS; ++i)
            row += across[i] * fetch(n, c, ys[j], xs[i]);
        total += down[j] * row;
    }
    return total;
}

void main() {
    int x = int(gl_GlobalInvocationID.x), y = int(gl_GlobalInvocationID.y), n = int(gl_GlobalInvocationID.z);
    if (x >= OUTPUT_WIDTH || y >= OUTPUT_HEIGHT || n >= BATCH)
        return;
    float xs[4], ys[4];
    vec4 across, down;
    taps(position(coordinate(n, y, x, 0), WIDTH), WIDTH, xs, across);
    taps(position(coordinate(n, y, x, 1), HEIGHT), HEIGHT, ys, down);
    for (int c = 0; c < CHANNELS; c += 4)
        write(n, c, y, x, interpolated(n, c, ys, down, xs, across));
}
