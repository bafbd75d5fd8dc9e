"""The wire, version 1: topics, payloads and their caps. Pure bytes in, checked objects out; no IO.

Rules that hold for every payload (W4): its size is checked before anything is decoded, a decoder either returns an
object that holds or raises `PayloadRefused`, nothing is ever unpickled, and unknown JSON keys are ignored so that a
newer peer of the same wire version may say more.
"""
