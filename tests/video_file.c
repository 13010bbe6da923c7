/* SPDX-License-Identifier: Apache-2.0 */
/* video_file.c: see video_file.h. */
#include "tests/video_file.h"

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/opt.h>
#include <libavutil/parseutils.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STRIPE = 16 };

static void require_code(int code, const char *what)
{
    if (code >= 0)
        return;
    fprintf(stderr, "video_file: %s: %s\n", what, av_err2str(code));
    abort();
}

/* Letters: x, y a place in the frame. */
static void paint(AVFrame *frame, int64_t number, int seed)
{
    require_code(av_frame_make_writable(frame), "frame");
    for (int y = 0; y < frame->height; y++)
        for (int x = 0; x < frame->width; x++)
            frame->data[0][y * frame->linesize[0] + x] =
                (uint8_t)(40 + ((x + y / 2 + number * seed) / STRIPE % 8) * 24);
    for (int y = 0; y < frame->height / 2; y++)
        for (int x = 0; x < frame->width / 2; x++) {
            const bool quarter = y < frame->height / 4 && x < frame->width / 4;
            frame->data[1][y * frame->linesize[1] + x] =
                quarter ? (uint8_t)(16 + number * 37 % 220) : 128;
            frame->data[2][y * frame->linesize[2] + x] =
                quarter ? (uint8_t)(240 - number * 53 % 220) : 128;
        }
    frame->pts = number;
}

static void write_packets(AVCodecContext *coder, AVFormatContext *to, AVStream *stream)
{
    AVPacket *packet = av_packet_alloc();
    for (;;) {
        const int code = avcodec_receive_packet(coder, packet);
        if (code == AVERROR(EAGAIN) || code == AVERROR_EOF)
            break;
        require_code(code, "encoding");
        if (packet->duration == 0)
            packet->duration = 1;
        av_packet_rescale_ts(packet, coder->time_base, stream->time_base);
        packet->stream_index = stream->index;
        require_code(av_interleaved_write_frame(to, packet), "writing");
    }
    av_packet_free(&packet);
}

static AVCodecContext *open_encoder(const AVCodec *codec, const video_plan *video, AVRational rate,
                                    bool global_header)
{
    AVCodecContext *coder = avcodec_alloc_context3(codec);
    coder->width = video->width;
    coder->height = video->height;
    coder->pix_fmt = codec->id == AV_CODEC_ID_MJPEG ? AV_PIX_FMT_YUVJ420P : AV_PIX_FMT_YUV420P;
    coder->time_base = av_inv_q(rate);
    coder->framerate = rate;
    coder->gop_size = 12;
    coder->max_b_frames = codec->id == AV_CODEC_ID_H264 ? 2 : 0;
    coder->thread_count = 1;
    coder->flags |= AV_CODEC_FLAG_BITEXACT | (global_header ? AV_CODEC_FLAG_GLOBAL_HEADER : 0);
    if (codec->id == AV_CODEC_ID_VP9 || codec->id == AV_CODEC_ID_VP8)
        av_opt_set(coder->priv_data, "deadline", "realtime", 0);
    if (codec->id == AV_CODEC_ID_HEVC)
        av_opt_set(coder->priv_data, "x265-params", "log-level=none", 0);
    require_code(avcodec_open2(coder, codec, NULL), video->encoder);
    return coder;
}

static void encode_all(AVCodecContext *coder, AVFormatContext *to, AVStream *stream,
                       const video_plan *video)
{
    AVFrame *frame = av_frame_alloc();
    frame->width = coder->width;
    frame->height = coder->height;
    frame->format = coder->pix_fmt;
    require_code(av_frame_get_buffer(frame, 0), "frame");
    for (int64_t k = 0; k < video->frames; k++) {
        paint(frame, k, video->seed);
        require_code(avcodec_send_frame(coder, frame), "encoding");
        write_packets(coder, to, stream);
    }
    require_code(avcodec_send_frame(coder, NULL), "encoding");
    write_packets(coder, to, stream);
    av_frame_free(&frame);
}

bool video_file_write(const char *path, const video_plan *video)
{
    AVFormatContext *to = NULL;
    AVRational rate;
    av_log_set_level(AV_LOG_ERROR);
    const AVCodec *codec = avcodec_find_encoder_by_name(video->encoder);
    if (!codec)
        return false;
    require_code(av_parse_video_rate(&rate, video->rate), video->rate);
    require_code(avformat_alloc_output_context2(&to, NULL, NULL, path), path);
    AVCodecContext *coder =
        open_encoder(codec, video, rate, to->oformat->flags & AVFMT_GLOBALHEADER);
    AVStream *stream = avformat_new_stream(to, NULL);
    require_code(avcodec_parameters_from_context(stream->codecpar, coder), "stream");
    stream->time_base = coder->time_base;
    stream->avg_frame_rate = rate;
    to->flags |= AVFMT_FLAG_BITEXACT;
    require_code(avio_open(&to->pb, path, AVIO_FLAG_WRITE), path);
    require_code(avformat_write_header(to, NULL), "header");
    encode_all(coder, to, stream, video);
    require_code(av_write_trailer(to), "trailer");
    avio_closep(&to->pb);
    avcodec_free_context(&coder);
    avformat_free_context(to);
    return true;
}
