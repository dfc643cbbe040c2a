"""A kernel whose results are known: integers and floating-point numbers on every multiprocessor, a word a thread.

Each thread takes `rounds` steps of a linear congruential generator from its own number on (`mad.lo.u32`), adds 1 as
often to a small float (`fma.rn.f32`, exact below 2^24), and writes the one, xor the other. The end of so many steps of
the generator has a closed form, so that the processor knows all words without computing each step.
"""

from __future__ import annotations

from array import array

THREADS = 1 << 17
"""A thousand a multiprocessor on the largest cards."""
BLOCK = 256
ROUNDS = 256
_A, _C = 1_664_525, 1_013_904_223
_MASK = 0xFFFF_FFFF
_SMALL = 1023

NAME = b"fold"
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry fold(.param .u64 out, .param .u32 count, .param .u32 rounds)
{
    .reg .pred %stop;
    .reg .b32 %i, %n, %left, %block, %size, %x, %y;
    .reg .f32 %f;
    .reg .b64 %to, %at;
    ld.param.u64 %to, [out];
    ld.param.u32 %n, [count];
    ld.param.u32 %left, [rounds];
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %i, %block, %size, %i;
    setp.ge.u32 %stop, %i, %n;
    @%stop bra DONE;
    mov.u32 %x, %i;
    and.b32 %y, %i, 1023;
    cvt.rn.f32.u32 %f, %y;
AGAIN:
    mad.lo.u32 %x, %x, 1664525, 1013904223;
    fma.rn.f32 %f, %f, 0f3F800000, 0f3F800000;
    sub.u32 %left, %left, 1;
    setp.ne.u32 %stop, %left, 0;
    @%stop bra AGAIN;
    cvt.rzi.u32.f32 %y, %f;
    xor.b32 %x, %x, %y;
    cvta.to.global.u64 %to, %to;
    mul.wide.u32 %at, %i, 4;
    add.s64 %to, %to, %at;
    st.global.u32 [%to], %x;
DONE:
    ret;
}
"""
"""For every card since Volta: the driver compiles it for the one at hand."""


def expected(threads: int = THREADS, rounds: int = ROUNDS) -> bytes:
    """What the kernel writes."""
    factor, constant = 1, 0
    for _ in range(rounds):
        factor, constant = factor * _A & _MASK, (constant * _A + _C) & _MASK
    words = ((number * factor + constant & _MASK) ^ ((number & _SMALL) + rounds) for number in range(threads))
    return array("I", words).tobytes()
